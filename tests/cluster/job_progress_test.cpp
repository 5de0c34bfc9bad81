// SPDX-License-Identifier: Apache-2.0
#include <skein/cluster/job_progress.hpp>

#include <cmath>
#include <limits>
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
                             "step,loss\nx,y\n", "step,loss\n,\n", "step,loss\nx,-\n"}) {
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

TEST_CASE("a loss that is NaN or infinite is the loss, a step that is none is no step",
          "[cluster][jobs]") {
    const auto now = progress_of("step,loss,lr\n1,3,0.1\n2,4,0.1\n3,nan,-inf\n");
    CHECK(now.step == 3);
    REQUIRE(now.loss);
    CHECK(std::isnan(*now.loss));
    CHECK(now.learning_rate == -std::numeric_limits<double>::infinity());
    CHECK(progress_of("step,loss\n5,inf\n").loss == std::numeric_limits<double>::infinity());
    CHECK(std::isnan(progress_of("step,loss\n5,nan\n6,\n").loss.value_or(0))); // the last report
    CHECK_FALSE(progress_of("step,steps,steps_per_s\nnan,inf,nan\n").step);
    CHECK_FALSE(cluster::time_left(progress_of("step,steps,steps_per_s\n1,inf,inf\n")));
}

TEST_CASE("columns with commas and quotes in their names move no other column", "[cluster][jobs]") {
    const auto now = progress_of("step,\"val_a,val_b\",epoch,loss,lr\n10,7,1,0.5,0.1\n");
    CHECK(now.step == 10);
    CHECK(now.epoch == 1);
    CHECK(now.loss == 0.5);
    CHECK(now.learning_rate == 0.1);
    CHECK(progress_of("step,\"a \"\"b\"\", c\",loss\n10,\"1,5\",0.5\n").loss == 0.5);
    CHECK(progress_of("step,loss\r\n10,0.5\r\n").loss == 0.5); // as Python's csv.writer ends lines
}

TEST_CASE("what a training says beside its table fills in what no column says", "[cluster][jobs]") {
    auto now = progress_of("step,loss,steps_per_s\n50,0.5,2\n");
    cluster::add_told(now,
                      R"({"format":"skein-progress-1","step":40,"steps":100,"epoch":1,"epochs":4,
        "workers":3,"worlds":2,"last_change":"rank 1 (pid 7)\u0007 was killed","samples_per_s":120.5,
        "is_over":false,"stopped_by":""})");
    CHECK(now.step == 50); // the table is newer
    CHECK(now.steps == 100);
    CHECK(now.epoch == 1);
    CHECK(now.epochs == 4);
    CHECK(now.ranks == 3);
    CHECK(now.worlds == 2);
    CHECK(now.last_change == R"(rank 1 (pid 7)\x07 was killed)");
    CHECK(now.samples_per_s == 120.5);
    CHECK_FALSE(now.is_over);
    CHECK(cluster::time_left(now) == 25);
    cluster::add_told(now, R"({"format":"skein-progress-1","is_over":true,
        "stopped_by":"early stopping: val_loss has not improved\u001b[31m"})");
    CHECK(now.is_over);
    CHECK(now.stopped_by == R"(early stopping: val_loss has not improved\x1b[31m)");
    for (const char* bad :
         {"", "{", "[]", "null", R"({"steps":7})", R"({"format":"other","steps":7})",
          R"({"format":3})",
          R"({"format":"skein-progress-1","steps":"7","is_over":"yes","stopped_by":3})",
          R"({"format":"skein-progress-1","worlds":0,"last_change":7})",
          R"({"format":"skein-progress-1","worlds":1e300})",
          R"({"format":"skein-progress-1","worlds":-1})"}) {
        CAPTURE(bad);
        auto none = progress_of("step\n1\n");
        cluster::add_told(none, bad);
        CHECK_FALSE(none.steps);
        CHECK_FALSE(none.is_over);
        CHECK(none.worlds == 0);
        CHECK(none.last_change.empty());
    }
}

} // namespace job_progress_test
