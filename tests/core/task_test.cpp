// SPDX-License-Identifier: Apache-2.0
#include <skein/core/task.hpp>

#include <catch2/catch_test_macros.hpp>

#include <skein/core/error.hpp>
#include <skein/core/sleep.hpp>

#include <memory>
#include <stdexcept>
#include <string>

#include "../support/counted.hpp"
#include "../support/death.hpp"
#include "../support/manual_loop.hpp"

using skein::task;
using skein_test::counted;
using skein_test::run;
using skein_test::tally;

namespace {

task<int> give_back(int value) { co_return value; }
task<void> mark(bool* flag) {
    *flag = true;
    co_return;
}
task<counted> make(tally* t, int value) { co_return counted(*t, value); }
task<int> fail_with(std::string text) {
    throw std::runtime_error(text);
    co_return 0;
}

// One way a coroutine may be written that g++ 12 compiles correctly; each is checked below.
task<int> named_task() {
    auto t = give_back(1);
    co_return co_await std::move(t);
}
task<int> lvalue_task() {
    auto t = give_back(2);
    const int x = co_await t;
    co_return x;
}
task<int> returned_by_function() { co_return co_await give_back(3); }
task<int> in_a_condition() {
    auto t = give_back(4);
    if (const int x = co_await t; x > 3) co_return x;
    co_return 0;
}
task<int> in_a_loop() {
    int sum = 0;
    for (int i = 0; i < 3; ++i) {
        auto t = give_back(i);
        sum += co_await t;
    }
    co_return sum;
}
task<int> two_in_an_expression() {
    auto a = give_back(10);
    auto b = give_back(20);
    const int x = co_await a;
    const int y = co_await b;
    co_return x + y;
}

} // namespace

TEST_CASE("a task does not start until it is awaited") {
    bool started = false;
    {
        auto never = mark(&started);
        CHECK(never);
    }
    CHECK_FALSE(started);
    run(mark(&started));
    CHECK(started);
}

TEST_CASE("values come out of every way to await") {
    CHECK(run(named_task()) == 1);
    CHECK(run(lvalue_task()) == 2);
    CHECK(run(returned_by_function()) == 3);
    CHECK(run(in_a_condition()) == 4);
    CHECK(run(in_a_loop()) == 3);
    CHECK(run(two_in_an_expression()) == 30);
}

TEST_CASE("an exception passes through every awaiter") {
    const auto outer = []() -> task<int> {
        auto t = fail_with("deep");
        co_return co_await t;
    };
    const auto catching = []() -> task<std::string> {
        try {
            auto t = fail_with("caught");
            (void)co_await t;
        } catch (const std::runtime_error& e) {
            co_return e.what();
        }
        co_return "nothing";
    };
    CHECK_THROWS_AS(run(outer()), std::runtime_error);
    CHECK(run(catching()) == "caught");
}

TEST_CASE("a result is moved, never copied, and nothing is left") {
    tally t;
    {
        const auto outer = [](tally* count) -> task<counted> {
            auto inner = make(count, 5);
            auto value = co_await std::move(inner);
            co_return value;
        };
        const auto value = run(outer(&t));
        CHECK(value.value() == 5);
    }
    CHECK(t.alive == 0);
    CHECK(t.made == 1);
    CHECK(t.copied == 0);
}

TEST_CASE("parameters and locals live until the task is gone, and are destroyed once") {
    tally t;
    const auto holds = [](counted parameter) -> task<int> {
        const counted local = parameter;
        co_await skein::yield();
        co_return local.value();
    };
    CHECK(run(holds(counted(t, 7))) == 7);
    CHECK(t.alive == 0);
    { // never started
        const auto dropped = holds(counted(t, 8));
        CHECK(t.alive == 1);
    }
    CHECK(t.alive == 0);
}

TEST_CASE("locals are destroyed when an exception leaves") {
    tally t;
    const auto body = [](tally* count) -> task<void> {
        const counted local(*count);
        auto inner = fail_with("out");
        (void)co_await inner;
    };
    CHECK_THROWS_AS(run(body(&t)), std::runtime_error);
    CHECK(t.alive == 0);
}

TEST_CASE("a task may give a reference or something that can only be moved") {
    static int here = 1;
    const auto refer = []() -> task<int&> { co_return here; };
    const auto body = [](decltype(refer) f) -> task<void> {
        auto t = f();
        int& r = co_await t;
        r = 9;
    };
    run(body(refer));
    CHECK(here == 9);
    const auto own = []() -> task<std::unique_ptr<int>> { co_return std::make_unique<int>(4); };
    CHECK(*run(own()) == 4);
}

TEST_CASE("moving a task leaves an empty one, and assigning drops the old one") {
    tally t;
    auto a = make(&t, 1);
    auto b = std::move(a);
    CHECK_FALSE(a);
    CHECK(b);
    bool started = false;
    auto c = mark(&started);
    c = task<void>();
    CHECK_FALSE(c);
    CHECK(run(std::move(b)).value() == 1);
}

TEST_CASE("a million tasks one inside the other do not overflow the stack") {
    struct deep {
        static task<int> down(int n) {
            if (n == 0) co_return 0;
            auto t = down(n - 1);
            co_return 1 + co_await t;
        }
    };
    CHECK(run(deep::down(1'000'000)) == 1'000'000);
}

TEST_CASE("a million tasks one after the other do not overflow the stack") {
    const auto body = []() -> task<long> {
        long sum = 0;
        for (int i = 0; i < 1'000'000; ++i) {
            auto t = give_back(i);
            sum += co_await t;
        }
        co_return sum;
    };
    CHECK(run(body()) == 499'999'500'000);
}

TEST_CASE("an exception passes through a hundred thousand awaiters") {
    struct deep {
        static task<void> down(int n) {
            if (n == 0) throw skein::error(skein::errc::io, "bottom");
            auto t = down(n - 1);
            co_await t;
        }
    };
    CHECK_THROWS_AS(run(deep::down(100'000)), skein::error);
}

TEST_CASE("awaiting a task twice, or one that was moved from, ends the program with a message") {
    const auto twice = []() -> task<void> {
        auto t = give_back(1);
        (void)co_await t;
        (void)co_await t;
    };
    const auto moved = []() -> task<void> {
        auto t = give_back(1);
        auto other = std::move(t);
        (void)co_await t;
    };
    CHECK(skein_test::abort_text([&] { run(twice()); }).find("moved from or has ended") !=
          std::string::npos);
    CHECK(skein_test::abort_text([&] { run(moved()); }).find("moved from or has ended") !=
          std::string::npos);
}
