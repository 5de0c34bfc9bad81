// SPDX-License-Identifier: Apache-2.0
#include <skein/train/context.hpp>

#include <catch2/catch_test_macros.hpp>

using namespace skein::train;

TEST_CASE("a single context is rank 0 of 1, without a communicator") {
    const auto ctx = context::single();
    CHECK(ctx.rank() == 0);
    CHECK(ctx.world_size() == 1);
    CHECK(ctx.is_first());
    CHECK(ctx.attempt() == 0);
    CHECK(ctx.comm() == nullptr);
    CHECK(ctx.world() == nullptr);
}

TEST_CASE("a stop request is what the watched flag says") {
    auto ctx = context::single();
    CHECK_FALSE(ctx.stop_requested());
    std::atomic<bool> flag{false};
    ctx.watch_stop_flag(&flag);
    CHECK_FALSE(ctx.stop_requested());
    flag = true;
    CHECK(ctx.stop_requested());
}

TEST_CASE("a context keeps its place in the world") {
    const context ctx({.rank = 0,
                       .world_size = 1,
                       .local_rank = 0,
                       .local_size = 1,
                       .attempt = 3,
                       .host = "here",
                       .job_id = "job-1"},
                      nullptr, nullptr);
    CHECK(ctx.attempt() == 3);
    CHECK(ctx.host() == "here");
    CHECK(ctx.job_id() == "job-1");
}
