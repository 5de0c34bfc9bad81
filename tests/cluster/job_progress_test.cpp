// SPDX-License-Identifier: Apache-2.0
#include <skein/cluster/job_progress.hpp>

#include <string>

#include <catch2/catch_test_macros.hpp>

namespace job_progress_test {

using namespace skein;
using cluster::progress_of;

TEST_CASE("the progress of a job is the last value of each column", "[cluster][jobs]") {
    const auto now = progress_of("step,loss,lr,val_loss,epoch\n10,2.5,0.1,,0\n20,2.25,0.05,3,1\n"
                                 "30,,0.025,,\n");
    CHECK(now.step == 30);
    CHECK(now.loss == 2.25); // the last report had none
    CHECK(now.learning_rate == 0.025);
    CHECK(now.epoch == 1);
    CHECK_FALSE(now.steps);
    CHECK_FALSE(now.steps_per_s);
    CHECK_FALSE(now.ranks);
    CHECK_FALSE(cluster::time_left(now));
}

TEST_CASE("a table that says how many steps there are says how long they take", "[cluster][jobs]") {
    auto now = progress_of("step,total_steps,step_s,world_size,tokens_per_s\n40,100,0.5,4,1000\n");
    CHECK(now.steps == 100);
    CHECK(now.steps_per_s == 2);
    CHECK(now.ranks == 4);
    CHECK(now.tokens_per_s == 1000);
    CHECK(cluster::time_left(now) == 30);
    now.steps_per_s = 0;
    CHECK_FALSE(cluster::time_left(now));
    CHECK(cluster::time_left(progress_of("step,steps,steps_per_s\n120,100,4\n")) == 0);
}

TEST_CASE("a table that is not one says nothing", "[cluster][jobs]") {
    for (const char* text : {"", "\n", "step", "step,loss\n", "step,loss\n\n\n", "\n1,2\n",
                             "step,loss\nnan,inf\n", "step,loss\n,\n", "step,loss\nx,-\n"}) {
        CAPTURE(text);
        const auto now = progress_of(text);
        CHECK_FALSE(now.step);
        CHECK_FALSE(now.loss);
    }
    CHECK(progress_of("loss,step\n1,7,8,9\n").step == 7); // more values than names
    CHECK(progress_of("step,loss\n5").step == 5);         // the last line has no end yet
    std::string much = "step,epoch\n1,3\n";
    for (int i = 2; i < 200; ++i) much += std::to_string(i) + ",\n";
    CHECK(progress_of(much).step == 199);
    CHECK_FALSE(progress_of(much).epoch); // too long ago
}

} // namespace job_progress_test
