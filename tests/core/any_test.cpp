// SPDX-License-Identifier: Apache-2.0
#include <skein/core/any.hpp>

#include <catch2/catch_test_macros.hpp>

#include <skein/core/sleep.hpp>

#include <stdexcept>
#include <string>

#include "../support/delayed.hpp"
#include "../support/manual_loop.hpp"

using namespace std::chrono_literals;
using skein::task;
using skein_test::fail_after;
using skein_test::give_after;
using skein_test::manual_loop;
using skein_test::run;

TEST_CASE("the first success wins, errors before it do not count") {
    manual_loop world;
    const auto body = []() -> task<void> {
        auto first = skein::any(fail_after(1s, "a"), give_after(3s, 3), give_after(2s, 2));
        const auto winner = co_await first;
        CHECK(winner.index == 2);
        CHECK(winner.value == 2);
    };
    world.run(body());
    CHECK(world.elapsed() == 2s);
}

TEST_CASE("when all fail the first error is the answer, after the last has failed") {
    manual_loop world;
    const auto body = []() -> task<void> {
        std::vector<task<int>> work;
        work.push_back(fail_after(2s, "late"));
        work.push_back(fail_after(1s, "early"));
        auto first = skein::any(std::move(work));
        (void)co_await first;
    };
    try {
        world.run(body());
        FAIL("no error");
    } catch (const std::runtime_error& e) {
        CHECK(std::string(e.what()) == "early");
    }
    CHECK(world.elapsed() == 2s);
}

TEST_CASE("a cancelled any throws cancelled") {
    skein::cancel_source stop;
    stop.request();
    const auto body = []() -> task<void> {
        auto first = skein::any(give_after(1s, 1), give_after(2s, 2));
        (void)co_await first;
    };
    try {
        run(skein::with_cancel(stop.token(), body()));
        FAIL("no error");
    } catch (const skein::error& e) {
        CHECK(e.code() == skein::errc::cancelled);
    }
}

TEST_CASE(
    "a success that is there is delivered, also when the task is cancelled in the same turn") {
    int got = 0;
    const auto body = [](int* out) -> task<void> {
        auto first = skein::any(give_after(1s, 7), give_after(1h, 8));
        const auto winner = co_await first;
        *out = winner.value;
    };
    const auto outer = [](int* out, decltype(body) f) -> task<void> {
        skein::scope s;
        s.spawn(f(out));
        co_await skein::sleep_for(1s); // fires in the turn in which the winner ends
        s.cancel();
        auto joined = s.join();
        co_await joined;
    };
    run(outer(&got, body));
    CHECK(got == 7);
}
