// SPDX-License-Identifier: Apache-2.0
#include <skein/core/all.hpp>

#include <catch2/catch_test_macros.hpp>

#include <skein/core/sleep.hpp>

#include <memory>
#include <stdexcept>
#include <string>

#include "../support/counted.hpp"
#include "../support/delayed.hpp"
#include "../support/manual_loop.hpp"

using namespace std::chrono_literals;
using skein::task;
using skein_test::counted;
using skein_test::fail_after;
using skein_test::manual_loop;
using skein_test::run;
using skein_test::tally;

namespace {
template <class T>
task<T> after(skein::duration d, T value) {
    co_await skein::sleep_for(d);
    co_return value;
}
task<void> nothing_after(skein::duration d) { co_await skein::sleep_for(d); }
task<int> note_cancel(bool* cancelled) {
    try {
        co_await skein::sleep_for(1h);
    } catch (const skein::error& e) {
        *cancelled = e.code() == skein::errc::cancelled;
        throw;
    }
    co_return 0;
}
} // namespace

TEST_CASE("all waits for every task and gives the values in order") {
    manual_loop world;
    const auto body = []() -> task<void> {
        auto together = skein::all(after(3s, 1), after(1s, std::string("two")), nothing_after(2s));
        auto [number, text, none] = co_await together;
        CHECK(number == 1);
        CHECK(text == "two");
        CHECK(none == std::monostate());
    };
    world.run(body());
    CHECK(world.elapsed() == 3s);
}

TEST_CASE("all takes any number of one type, also none") {
    const auto body = []() -> task<void> {
        std::vector<task<int>> work;
        for (int i = 0; i < 50; ++i) work.push_back(after(std::chrono::seconds(50 - i), i));
        auto together = skein::all(std::move(work));
        const auto values = co_await together;
        REQUIRE(values.size() == 50);
        for (int i = 0; i < 50; ++i) CHECK(values[static_cast<std::size_t>(i)] == i);

        std::vector<task<int>> no_work;
        auto none = skein::all(std::move(no_work));
        const auto no_values = co_await none;
        CHECK(no_values.empty());

        std::vector<task<void>> voids;
        voids.push_back(nothing_after(1s));
        voids.push_back(nothing_after(2s));
        auto silent = skein::all(std::move(voids));
        co_await silent;
    };
    run(body());
}

TEST_CASE("the first error cancels the others and is rethrown after all have ended") {
    manual_loop world;
    bool cancelled = false;
    const auto body = [](bool* seen) -> task<void> {
        auto together = skein::all(note_cancel(seen), fail_after(1s));
        (void)co_await together;
    };
    CHECK_THROWS_AS(world.run(body(&cancelled)), std::runtime_error);
    CHECK(cancelled);
    CHECK(world.elapsed() == 1s);
}

TEST_CASE("cancelling all cancels every task") {
    bool a = false, b = false;
    const auto inner = [](bool* x, bool* y) -> task<void> {
        auto together = skein::all(note_cancel(x), note_cancel(y));
        (void)co_await together;
    };
    const auto body = [](bool* x, bool* y, decltype(inner) f) -> task<void> {
        skein::scope s;
        s.spawn(f(x, y));
        co_await skein::sleep_for(1s);
        s.cancel();
        auto joined = s.join();
        co_await joined;
    };
    run(body(&a, &b, inner));
    CHECK(a);
    CHECK(b);
}

TEST_CASE("values are moved through, never copied") {
    tally t;
    const auto make = [](tally* count, int v) -> task<counted> { co_return counted(*count, v); };
    const auto body = [](tally* count, decltype(make) f) -> task<void> {
        auto together = skein::all(f(count, 1), f(count, 2));
        auto [a, b] = co_await together;
        CHECK(a.value() + b.value() == 3);
        std::vector<task<counted>> work;
        work.push_back(f(count, 4));
        auto many = skein::all(std::move(work));
        const auto values = co_await many;
        CHECK(values[0].value() == 4);
    };
    run(body(&t, make));
    CHECK(t.alive == 0);
    CHECK(t.copied == 0);
    const auto own = []() -> task<void> {
        auto together = skein::all(
            []() -> task<std::unique_ptr<int>> { co_return std::make_unique<int>(3); }());
        auto [p] = co_await together;
        CHECK(*p == 3);
    };
    run(own());
}

TEST_CASE(
    "values that are all there are delivered, also when the task is cancelled in the same turn") {
    int got = 0;
    const auto value = [](int v) -> task<int> {
        co_await skein::sleep_for(1s);
        co_return v;
    };
    const auto body = [](int* out, decltype(value) f) -> task<void> {
        auto both = skein::all(f(1), f(2));
        const auto [a, b] = co_await both;
        std::vector<task<int>> many;
        many.push_back(f(4));
        *out = a + b;
        auto rest = skein::all(std::move(many));
        const auto values = co_await rest;
        *out += values.at(0);
    };
    const auto outer = [](int* out, decltype(body) f, decltype(value) g,
                          skein::duration until) -> task<void> {
        skein::scope s;
        s.spawn(f(out, g));
        co_await skein::sleep_for(until);
        s.cancel();
        auto joined = s.join();
        co_await joined;
    };
    run(outer(&got, body, value, 1s));
    CHECK(got == 3);
    run(outer(&got, body, value, 2s));
    CHECK(got == 7);
}
