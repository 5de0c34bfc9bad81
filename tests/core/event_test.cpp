// SPDX-License-Identifier: Apache-2.0
#include <skein/core/event.hpp>

#include <catch2/catch_test_macros.hpp>

#include <skein/core/awaitable.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/sleep.hpp>

#include "../support/manual_loop.hpp"

using namespace std::chrono_literals;
using skein::task;
using skein_test::run;

namespace {
task<void> count_when_set(skein::event* e, int* n) {
    co_await e->wait();
    ++*n;
}
} // namespace

TEST_CASE("setting an event wakes all who wait, and later waits pass") {
    const auto body = []() -> task<void> {
        skein::event e;
        int n = 0;
        skein::scope s;
        for (int i = 0; i < 3; ++i) s.spawn(count_when_set(&e, &n));
        co_await skein::sleep_for(1s);
        CHECK(n == 0);
        e.set();
        e.set();
        CHECK(e.is_set());
        auto joined = s.join();
        co_await joined;
        CHECK(n == 3);
        co_await e.wait();
    };
    run(body());
}

TEST_CASE("after a reset waits suspend again") {
    const auto body = []() -> task<void> {
        skein::event e;
        int n = 0;
        e.set();
        e.reset();
        skein::scope s;
        s.spawn(count_when_set(&e, &n));
        co_await skein::sleep_for(1s);
        CHECK(n == 0);
        e.set();
        e.reset(); // who was woken stays woken
        auto joined = s.join();
        co_await joined;
        CHECK(n == 1);
    };
    run(body());
}

TEST_CASE("a cancelled wait leaves the event as it was") {
    const auto body = []() -> task<void> {
        skein::event e;
        int n = 0;
        skein::scope cancelled;
        cancelled.spawn(count_when_set(&e, &n));
        co_await skein::yield();
        cancelled.cancel();
        auto gone = cancelled.join();
        co_await gone;
        CHECK(n == 0);
        CHECK_FALSE(e.is_set());
        skein::scope s;
        s.spawn(count_when_set(&e, &n));
        co_await skein::yield();
        e.set();
        auto joined = s.join();
        co_await joined;
        CHECK(n == 1);
    };
    run(body());
}

namespace {
skein::task<void> set_later(skein::event* e, skein::duration after) {
    co_await skein::sleep_for(after);
    e->set();
}
} // namespace

TEST_CASE("a wait with a limit says whether the event was set") {
    const auto body = []() -> task<void> {
        skein::event e;
        const auto begin = skein::loop::current().now();
        auto vain = e.wait_for(2s);
        const bool was_set = co_await vain;
        CHECK_FALSE(was_set);
        CHECK(skein::loop::current().now() - begin == 2s);
        skein::scope s;
        s.spawn(set_later(&e, 1s));
        auto heard = e.wait_until(begin + 10s);
        const bool is_heard = co_await heard;
        CHECK(is_heard);
        CHECK(skein::loop::current().now() - begin == 3s);
        auto joined = s.join();
        co_await joined;
        auto at_once = e.wait_for(0s);
        const bool was_there = co_await at_once;
        CHECK(was_there);
        e.reset();
        auto cancelled = skein::as_result(skein::with_timeout(e.wait_for(10s), 1s));
        const auto outcome = co_await cancelled;
        CHECK_FALSE(outcome);
        CHECK(skein::loop::current().now() - begin == 4s);
    };
    run(body());
}
