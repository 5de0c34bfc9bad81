// SPDX-License-Identifier: Apache-2.0
#include <skein/core/sleep.hpp>

#include <catch2/catch_test_macros.hpp>

#include <skein/core/scope.hpp>
#include <skein/core/timeout.hpp>

#include <string>

#include "../support/manual_loop.hpp"

using namespace std::chrono_literals;
using skein::errc;
using skein::task;
using skein_test::manual_loop;

TEST_CASE("sleeps take exactly their time, also nothing and the past") {
    manual_loop world;
    const auto body = [](manual_loop* l) -> task<void> {
        const auto start = l->now();
        for (const skein::duration length : {1ns, 63ns, 64ns, 999'999ns}) {
            const auto before = l->now();
            co_await skein::sleep_for(length);
            CHECK(l->now() - before == length);
        }
        const auto before = l->now();
        co_await skein::sleep_for(0ns);
        co_await skein::sleep_for(-5s);
        co_await skein::sleep_until(start);
        CHECK(l->now() == before);
        co_await skein::sleep_until(before + 3s);
        CHECK(l->now() - before == 3s);
    };
    world.run(body(&world));
}

TEST_CASE("a sleep counts from the call, not from the begin of a turn that computed for long") {
    manual_loop world;
    const auto body = [](manual_loop* l) -> task<void> {
        l->spend(10s);
        co_await skein::sleep_for(1s);
        CHECK(l->elapsed() == 11s);
        l->spend(10s);
        const auto quick = [](skein::duration length) -> task<void> {
            co_await skein::sleep_for(length);
        };
        auto timed = skein::with_timeout(quick(1s), 2s);
        co_await timed;
        CHECK(l->elapsed() == 22s);
    };
    world.run(body(&world));
}

TEST_CASE("sleepers wake in order of time, equal times in order of their calls") {
    manual_loop world;
    std::string order;
    const auto sleeper = [](char name, skein::duration length, std::string* out) -> task<void> {
        co_await skein::sleep_for(length);
        *out += name;
    };
    const auto body = [](std::string* out, decltype(sleeper) f) -> task<void> {
        skein::scope s;
        s.spawn(f('d', 2h, out));
        s.spawn(f('b', 1s, out));
        s.spawn(f('c', 1s, out));
        s.spawn(f('a', 1ns, out));
        auto joined = s.join();
        co_await joined;
    };
    world.run(body(&order, sleeper));
    CHECK(order == "abcd");
}

TEST_CASE("a cancelled sleep throws at once and leaves no timer") {
    manual_loop world;
    const auto sleeper = [](errc* seen) -> task<void> {
        try {
            co_await skein::sleep_for(24h);
        } catch (const skein::error& e) {
            *seen = e.code();
        }
    };
    const auto body = [](errc* seen, decltype(sleeper) f) -> task<void> {
        skein::scope s;
        s.spawn(f(seen));
        co_await skein::sleep_for(1s);
        s.cancel();
        auto joined = s.join();
        co_await joined;
        co_await skein::sleep_for(1s);
    };
    errc seen = errc::unknown;
    world.run(body(&seen, sleeper));
    CHECK(seen == errc::cancelled);
    CHECK(world.elapsed() == 2s);
}

TEST_CASE("yield lets what is ready run first, and is a cancellation point") {
    manual_loop world;
    std::string order;
    const auto child = [](char name, std::string* out) -> task<void> {
        for (int i = 0; i < 3; ++i) {
            *out += name;
            co_await skein::yield();
        }
    };
    const auto body = [](std::string* out, decltype(child) f) -> task<void> {
        skein::scope s;
        s.spawn(f('a', out));
        s.spawn(f('b', out));
        auto joined = s.join();
        co_await joined;
        s.cancel();
        s.spawn(f('c', out));
        auto again = s.join();
        co_await again;
    };
    world.run(body(&order, child));
    CHECK(order == "abababc");
}

TEST_CASE("the longest sleep does not end at once") {
    const auto nap = []() -> task<void> { co_await skein::sleep_for(skein::duration::max()); };
    const auto body = [](decltype(nap) f) -> task<bool> {
        auto asleep = skein::with_timeout(f(), 1h);
        try {
            co_await asleep;
        } catch (const skein::error& e) {
            co_return e.code() == errc::timeout;
        }
        co_return false;
    };
    manual_loop world;
    world.spend(1h); // now() + duration::max() would overflow
    CHECK(world.run(body(nap)));
    CHECK(world.elapsed() == 2h);
}
