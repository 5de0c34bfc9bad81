// SPDX-License-Identifier: Apache-2.0
#include <skein/core/timeout.hpp>

#include <catch2/catch_test_macros.hpp>

#include <skein/core/scope.hpp>
#include <skein/core/sleep.hpp>

#include <optional>
#include <stdexcept>

#include "../support/delayed.hpp"
#include "../support/manual_loop.hpp"

using namespace std::chrono_literals;
using skein::errc;
using skein::task;
using skein_test::give_after;
using skein_test::manual_loop;
using skein_test::run;

namespace {
task<std::optional<errc>> code_of(task<int> work) {
    try {
        (void)co_await work;
        co_return std::nullopt;
    } catch (const skein::error& e) {
        co_return e.code();
    }
}
} // namespace

TEST_CASE("work that ends in time gives its value, and no timer stays") {
    manual_loop world;
    const auto body = []() -> task<int> {
        auto t = skein::with_timeout(give_after(1s, 5), 2s);
        co_return co_await t;
    };
    CHECK(world.run(body()) == 5);
    CHECK(world.elapsed() == 1s);
}

TEST_CASE("work that is late is cancelled, and the error says how long it was given") {
    manual_loop world;
    const auto body = []() -> task<void> {
        auto t = skein::with_timeout(give_after(1h, 5), 1500ms);
        (void)co_await t;
    };
    try {
        world.run(body());
        FAIL("no error");
    } catch (const skein::error& e) {
        CHECK(e.code() == errc::timeout);
        CHECK(e.text().find("1.5 s") != std::string::npos);
    }
    CHECK(world.elapsed() == 1500ms);
}

TEST_CASE("a deadline in the past ends the work at its first wait") {
    manual_loop world;
    const auto body = [](manual_loop* l) -> task<void> {
        co_await skein::sleep_for(1s);
        auto late = skein::with_deadline(give_after(1s, 5), l->now() - 500ms);
        auto code = code_of(std::move(late));
        const auto seen = co_await code;
        CHECK(seen == errc::timeout);
        CHECK(l->elapsed() == 1s);
    };
    world.run(body(&world));
}

TEST_CASE("errors of the work pass through") {
    const auto failing = []() -> task<int> {
        throw std::runtime_error("own");
        co_return 0;
    };
    CHECK_THROWS_AS(run(skein::with_deadline(failing(), skein::time_point::max())),
                    std::runtime_error);
}

TEST_CASE("the inner of two limits counts when it is the shorter one, and the other way round") {
    const auto body = []() -> task<void> {
        for (const bool inner_first : {true, false}) {
            auto inner = skein::with_timeout(give_after(1h, 1), inner_first ? 1s : 3s);
            auto outer = skein::with_timeout(std::move(inner), inner_first ? 3s : 1s);
            const auto before = skein::loop::current().now();
            auto code = code_of(std::move(outer));
            const auto seen = co_await code;
            CHECK(seen == errc::timeout);
            CHECK(skein::loop::current().now() - before == 1s);
        }
    };
    run(body());
}

TEST_CASE("cancellation from outside stays cancellation") {
    std::optional<errc> seen;
    const auto inner = [](std::optional<errc>* out) -> task<void> {
        auto timed = skein::with_timeout(give_after(1h, 1), 10s);
        auto code = code_of(std::move(timed));
        *out = co_await code;
    };
    const auto body = [](std::optional<errc>* out, decltype(inner) f) -> task<void> {
        skein::scope s;
        s.spawn(f(out));
        co_await skein::sleep_for(1s);
        s.cancel();
        auto joined = s.join();
        co_await joined;
    };
    run(body(&seen, inner));
    CHECK(seen == errc::cancelled);
}

TEST_CASE("a value that the work gives although it was cancelled is delivered") {
    const auto stubborn = []() -> task<int> {
        try {
            co_await skein::sleep_for(1h);
        } catch (const skein::error&) {}
        co_return 9;
    };
    CHECK(run(skein::with_deadline(stubborn(), skein::time_point(1s))) == 9);
}

TEST_CASE("the longest limit is no limit") {
    const auto work = []() -> skein::task<int> {
        co_await skein::sleep_for(1h);
        co_return 5;
    };
    skein_test::manual_loop world;
    world.spend(1h);
    CHECK(world.run(skein::with_timeout(work(), skein::duration::max())) == 5);
}
