// SPDX-License-Identifier: Apache-2.0
#include <skein/core/task_context.hpp>

#include <skein/core/all.hpp>
#include <skein/core/as_completed.hpp>
#include <skein/core/channel.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/sleep.hpp>
#include <skein/core/timeout.hpp>

#include <catch2/catch_test_macros.hpp>

#include <string>
#include <vector>

#include "../support/manual_loop.hpp"

using namespace std::chrono_literals;

using skein::counted_ptr;
using skein::task;
using skein::task_context;
using skein_test::manual_loop;

namespace {

constexpr char kind_of_tests = 0;

struct named final : task_context {
    named(std::string n, int* ended)
        : task_context(&kind_of_tests), name(std::move(n)), ended_(ended) {}
    ~named() override { ++*ended_; }
    std::string name;

private:
    int* ended_;
};

/// "-" under none.
std::string here() {
    auto* c = task_context::current();
    return c == nullptr ? "-" : static_cast<named*>(c)->name;
}

task<void> expect(std::string name, skein::duration length) {
    CHECK(here() == name);
    co_await skein::sleep_for(length);
    CHECK(here() == name);
    co_await skein::yield();
    CHECK(here() == name);
}

} // namespace

TEST_CASE("a context goes down to what a task awaits and spawns, and not to others") {
    manual_loop world;
    int ended = 0;
    const auto family = [](std::string name) -> task<void> {
        CHECK(here() == name);
        skein::scope children;
        children.spawn(expect(name, 2ms));
        children.spawn(expect(name, 1ms));
        auto own = expect(name, 3ms);
        co_await own;
        auto joined = children.join();
        co_await joined;
        CHECK(here() == name);
        auto limited = skein::with_timeout(expect(name, 1ms), 1s);
        co_await limited;
        auto sure = skein::shield(expect(name, 1ms));
        co_await sure;
        CHECK(here() == name);
    };
    const auto body = [](decltype(family) f, int* ends) -> task<void> {
        CHECK(here() == "-");
        skein::scope all;
        for (const char* name : {"a", "b", "c"}) {
            auto work =
                skein::with_context(counted_ptr<task_context>(new named(name, ends)), f(name));
            all.spawn(std::move(work));
        }
        all.spawn(expect("-", 2ms));
        auto joined = all.join();
        co_await joined;
        CHECK(here() == "-");
    };
    world.run(body(family, &ended));
    CHECK(ended == 3);
    CHECK(here() == "-");
}

TEST_CASE("the context of the awaiting task is back after one under another, also after an error") {
    manual_loop world;
    int ended = 0;
    const auto fails = []() -> task<void> {
        CHECK(here() == "inner");
        co_await skein::sleep_for(1ms);
        throw skein::error(skein::errc::unknown, "on purpose");
    };
    const auto outer = [](decltype(fails) f, int* ends) -> task<void> {
        CHECK(here() == "outer");
        auto inner = skein::with_context(counted_ptr<task_context>(new named("inner", ends)), f());
        bool thrown = false;
        try {
            co_await inner;
        } catch (const skein::error&) {
            thrown = true;
            CHECK(here() == "outer");
        }
        CHECK(thrown);
        auto none = skein::with_context(counted_ptr<task_context>(), expect("-", 1ms));
        co_await none;
        CHECK(here() == "outer");
    };
    auto work = skein::with_context(counted_ptr<task_context>(new named("outer", &ended)),
                                    outer(fails, &ended));
    world.run(std::move(work));
    CHECK(ended == 2);
}

TEST_CASE("a spawned task keeps its context when the one that spawned it has ended") {
    manual_loop world;
    int ended = 0;
    const auto body = [](int* ends) -> task<void> {
        skein::scope elsewhere;
        const auto starts = [](skein::scope* where) -> task<void> {
            where->spawn(expect("starter", 5ms));
            co_return;
        };
        auto starting = skein::with_context(counted_ptr<task_context>(new named("starter", ends)),
                                            starts(&elsewhere));
        co_await starting;
        starting = {};
        CHECK(*ends == 0);
        auto joined = elsewhere.join();
        co_await joined;
        CHECK(*ends == 1);
    };
    world.run(body(&ended));
}

TEST_CASE("who hands over a value does not hand over its context") {
    manual_loop world;
    int ended = 0;
    const auto body = [](int* ends) -> task<void> {
        skein::channel<int> numbers(1);
        const auto sends = [](skein::channel<int>* to) -> task<void> {
            for (int i = 0; i < 10; ++i) {
                auto sent = to->send(i);
                co_await sent;
                CHECK(here() == "sender");
            }
        };
        const auto receives = [](skein::channel<int>* from) -> task<void> {
            for (int i = 0; i < 10; ++i) {
                auto received = from->receive();
                const auto got = co_await received;
                CHECK(got == i);
                CHECK(here() == "receiver");
            }
        };
        skein::scope both;
        both.spawn(skein::with_context(counted_ptr<task_context>(new named("sender", ends)),
                                       sends(&numbers)));
        both.spawn(skein::with_context(counted_ptr<task_context>(new named("receiver", ends)),
                                       receives(&numbers)));
        auto joined = both.join();
        co_await joined;
    };
    world.run(body(&ended));
    CHECK(ended == 2);
}

TEST_CASE("a long chain of tasks that never suspend keeps its context over the loop's turns") {
    manual_loop world;
    int ended = 0;
    const auto body = []() -> task<void> {
        const auto nothing = []() -> task<void> { co_return; };
        for (int i = 0; i < 20'000; ++i) {
            auto one = nothing();
            co_await one;
            if (here() != "patient") FAIL("lost at " << i);
        }
    };
    world.run(skein::with_context(counted_ptr<task_context>(new named("patient", &ended)), body()));
    CHECK(ended == 1);
}

TEST_CASE("calls that are posted belong to nothing") {
    manual_loop world;
    int ended = 0;
    const auto body = []() -> task<void> {
        std::string seen;
        skein::loop::current().post([&seen] { seen = here(); });
        co_await skein::yield();
        CHECK(seen == "-");
        CHECK(here() == "poster");
        {
            const task_context::use none(nullptr);
            CHECK(here() == "-");
        }
        CHECK(here() == "poster");
    };
    world.run(skein::with_context(counted_ptr<task_context>(new named("poster", &ended)), body()));
    CHECK(ended == 1);
}
