// SPDX-License-Identifier: Apache-2.0
#include <skein/core/mutex.hpp>

#include <catch2/catch_test_macros.hpp>

#include <skein/core/scope.hpp>
#include <skein/core/sleep.hpp>

#include <string>

#include "../support/manual_loop.hpp"

using namespace std::chrono_literals;
using skein::task;
using skein_test::run;

namespace {
task<void> hold(skein::mutex* m, char name, std::string* out, skein::duration length) {
    auto held = co_await m->lock();
    *out += name;
    co_await skein::sleep_for(length);
    *out += name;
}
} // namespace

TEST_CASE("only one holds the lock, in the order of asking") {
    std::string order;
    const auto body = [](std::string* out) -> task<void> {
        skein::mutex m;
        skein::scope s;
        for (const char name : {'a', 'b', 'c'}) s.spawn(hold(&m, name, out, 1s));
        auto joined = s.join();
        co_await joined;
        CHECK_FALSE(m.is_locked());
    };
    run(body(&order));
    CHECK(order == "aabbcc");
}

TEST_CASE("a guard can be moved and given back early") {
    const auto body = []() -> task<void> {
        skein::mutex m;
        auto first = co_await m.lock();
        CHECK(m.is_locked());
        auto second = std::move(first);
        first.unlock(); // empty: nothing happens
        CHECK(m.is_locked());
        second.unlock();
        second.unlock();
        CHECK_FALSE(m.is_locked());
        first = co_await m.lock();
        CHECK(m.is_locked());
    };
    run(body());
}

TEST_CASE("a cancelled lock is not taken, and the line goes on") {
    std::string order;
    const auto body = [](std::string* out) -> task<void> {
        skein::mutex m;
        skein::scope s, cancelled;
        s.spawn(hold(&m, 'a', out, 2s));
        co_await skein::yield();
        cancelled.spawn(hold(&m, 'x', out, 1s));
        co_await skein::yield();
        s.spawn(hold(&m, 'b', out, 1s));
        co_await skein::sleep_for(1s);
        cancelled.cancel();
        auto gone = cancelled.join();
        co_await gone;
        CHECK(m.is_locked());
        auto joined = s.join();
        co_await joined;
        CHECK_FALSE(m.is_locked());
    };
    run(body(&order));
    CHECK(order == "aabb");
}

TEST_CASE("a lock that was handed over to a task cancelled at the same moment is given back") {
    std::string order;
    const auto body = [](std::string* out) -> task<void> {
        skein::mutex m;
        skein::scope cancelled;
        auto held = co_await m.lock();
        cancelled.spawn(hold(&m, 'x', out, 1s));
        co_await skein::yield();
        held.unlock();      // the lock passes to x ...
        cancelled.cancel(); // ... which is cancelled before it runs
        auto gone = cancelled.join();
        co_await gone;
        CHECK_FALSE(m.is_locked());
    };
    run(body(&order));
    CHECK(order == "x");
}
