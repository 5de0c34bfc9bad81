// SPDX-License-Identifier: Apache-2.0
#include <skein/core/race.hpp>

#include <catch2/catch_test_macros.hpp>

#include <skein/core/sleep.hpp>

#include <stdexcept>

#include "../support/counted.hpp"
#include "../support/delayed.hpp"
#include "../support/manual_loop.hpp"

using namespace std::chrono_literals;
using skein::task;
using skein_test::counted;
using skein_test::fail_after;
using skein_test::give_after;
using skein_test::manual_loop;
using skein_test::run;
using skein_test::slow_to_leave;
using skein_test::tally;

TEST_CASE("the first to end wins; losers are cancelled and waited for") {
    manual_loop world;
    bool left = false;
    const auto body = [](bool* out) -> task<void> {
        auto first = skein::race(slow_to_leave(out), give_after(2s, 7), give_after(3s, 8));
        const auto winner = co_await first;
        CHECK(winner.index == 1);
        CHECK(winner.value == 7);
        CHECK(*out);
    };
    world.run(body(&left));
    CHECK(world.elapsed() == 3s);
}

TEST_CASE("an error that comes first is the outcome") {
    const auto body = []() -> task<void> {
        auto first = skein::race(fail_after(1s), give_after(2s, 7));
        (void)co_await first;
    };
    CHECK_THROWS_AS(run(body()), std::runtime_error);
}

TEST_CASE("a race of no tasks is an error, of one task its value") {
    const auto none = []() -> task<void> {
        std::vector<task<int>> work;
        auto first = skein::race(std::move(work));
        (void)co_await first;
    };
    CHECK_THROWS_AS(run(none()), skein::error);
    const auto one = []() -> task<int> {
        auto first = skein::race(give_after(1s, 5));
        const auto winner = co_await first;
        co_return winner.value;
    };
    CHECK(run(one()) == 5);
}

TEST_CASE("a race of tasks without a value says which it was") {
    const auto silent = [](skein::duration d) -> task<void> { co_await skein::sleep_for(d); };
    const auto body = [](decltype(silent) f) -> task<std::size_t> {
        std::vector<task<void>> work;
        for (const skein::duration d : {3s, 1s, 2s}) work.push_back(f(d));
        auto first = skein::race(std::move(work));
        const auto winner = co_await first;
        co_return winner.index;
    };
    CHECK(run(body(silent)) == 1);
}

TEST_CASE("a cancelled race throws cancelled after all have ended") {
    bool left = false;
    skein::errc seen = skein::errc::unknown;
    const auto inner = [](bool* out, skein::errc* code) -> task<void> {
        try {
            auto first = skein::race(slow_to_leave(out), give_after(1h, 1));
            (void)co_await first;
        } catch (const skein::error& e) {
            *code = e.code();
        }
    };
    const auto body = [](bool* out, skein::errc* code, decltype(inner) f) -> task<void> {
        skein::scope s;
        s.spawn(f(out, code));
        co_await skein::sleep_for(1s);
        s.cancel();
        auto joined = s.join();
        co_await joined;
    };
    run(body(&left, &seen, inner));
    CHECK(left);
    CHECK(seen == skein::errc::cancelled);
}

TEST_CASE("the winner's value is moved, the losers' are destroyed") {
    tally t;
    const auto make = [](tally* count, skein::duration d, int v) -> task<counted> {
        counted value(*count, v);
        co_await skein::sleep_for(d);
        co_return value;
    };
    const auto body = [](tally* count, decltype(make) f) -> task<int> {
        std::vector<task<counted>> work;
        for (int i = 1; i < 10; ++i) work.push_back(f(count, std::chrono::seconds(10 - i), i));
        auto first = skein::race(std::move(work));
        const auto winner = co_await first;
        first = {}; // with the moved-from value in its frame
        CHECK(count->alive == 1);
        co_return winner.value.value();
    };
    CHECK(run(body(&t, make)) == 9);
    CHECK(t.alive == 0);
    CHECK(t.copied == 0);
}

TEST_CASE("a value that is there is delivered, also when the task is cancelled in the same turn") {
    int got = 0;
    const auto body = [](int* out) -> task<void> {
        auto first = skein::race(give_after(1s, 7), give_after(1h, 8));
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
