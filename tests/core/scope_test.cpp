// SPDX-License-Identifier: Apache-2.0
#include <skein/core/scope.hpp>

#include <catch2/catch_test_macros.hpp>

#include <skein/core/event.hpp>
#include <skein/core/sleep.hpp>

#include <stdexcept>
#include <string>

#include "../support/counted.hpp"
#include "../support/death.hpp"
#include "../support/manual_loop.hpp"

using namespace std::chrono_literals;
using skein::errc;
using skein::scope;
using skein::task;
using skein_test::counted;
using skein_test::manual_loop;
using skein_test::run;
using skein_test::tally;

namespace {

task<void> sleep_then(skein::duration d, std::string* out, char name) {
    co_await skein::sleep_for(d);
    *out += name;
}
task<void> throw_after(skein::duration d, std::string text) {
    co_await skein::sleep_for(d);
    throw std::runtime_error(text);
}
task<void> wait_for_ever(bool* cancelled) {
    try {
        skein::event never;
        co_await never.wait();
    } catch (const skein::error& e) {
        *cancelled = e.code() == errc::cancelled;
        throw;
    }
}

} // namespace

TEST_CASE("children run concurrently and end before join does") {
    manual_loop world;
    std::string order;
    const auto body = [](std::string* out) -> task<void> {
        scope s;
        s.spawn(sleep_then(3s, out, 'c'));
        s.spawn(sleep_then(1s, out, 'a'));
        s.spawn(sleep_then(2s, out, 'b'));
        CHECK(s.size() == 3);
        CHECK(out->empty());
        auto joined = s.join();
        co_await joined;
        CHECK(s.size() == 0);
    };
    world.run(body(&order));
    CHECK(order == "abc");
    CHECK(world.elapsed() == 3s);
}

TEST_CASE("the first error cancels the siblings and comes out of join") {
    manual_loop world;
    bool cancelled = false;
    const auto body = [](bool* seen) -> task<void> {
        scope s;
        s.spawn(wait_for_ever(seen));
        s.spawn(throw_after(1s, "first"));
        s.spawn(throw_after(2s, "second"));
        auto joined = s.join();
        co_await joined;
    };
    try {
        world.run(body(&cancelled));
        FAIL("no error");
    } catch (const std::runtime_error& e) {
        CHECK(std::string(e.what()) == "first");
    }
    CHECK(cancelled);
    CHECK(world.elapsed() == 1s);
}

TEST_CASE("cancelling a scope ends its children, and join succeeds") {
    bool cancelled = false;
    const auto body = [](bool* seen) -> task<void> {
        scope s;
        s.spawn(wait_for_ever(seen));
        co_await skein::yield();
        s.cancel();
        CHECK(s.cancelled());
        auto joined = s.join();
        co_await joined;
    };
    run(body(&cancelled));
    CHECK(cancelled);
}

TEST_CASE("cancelling the joining task cancels the children, waits for them and throws") {
    manual_loop world;
    bool cancelled = false;
    const auto inner = [](bool* seen) -> task<void> {
        scope s;
        s.spawn(wait_for_ever(seen));
        auto joined = s.join();
        co_await joined;
    };
    const auto body = [](bool* seen, decltype(inner) f) -> task<void> {
        skein::cancel_source stop;
        scope s;
        auto work = skein::with_cancel(stop.token(), f(seen));
        s.spawn(std::move(work));
        co_await skein::sleep_for(1s);
        stop.request();
        auto joined = s.join();
        co_await joined;
    };
    try {
        world.run(body(&cancelled, inner));
        FAIL("no error");
    } catch (const skein::error& e) {
        CHECK(e.code() == errc::cancelled);
    }
    CHECK(cancelled);
}

TEST_CASE("a child may spawn into the scope it runs in") {
    int ended = 0;
    struct family {
        static task<void> child(scope* s, int depth, int* count) {
            co_await skein::yield();
            if (depth > 0) {
                s->spawn(child(s, depth - 1, count));
                s->spawn(child(s, depth - 1, count));
            }
            ++*count;
        }
    };
    const auto body = [](int* count) -> task<void> {
        scope s;
        s.spawn(family::child(&s, 5, count));
        auto joined = s.join();
        co_await joined;
    };
    run(body(&ended));
    CHECK(ended == 63);
}

TEST_CASE("a scope can be joined again and again") {
    std::string order;
    const auto body = [](std::string* out) -> task<void> {
        scope s;
        auto nothing = s.join();
        co_await nothing;
        for (const char name : {'a', 'b'}) {
            s.spawn(sleep_then(1s, out, name));
            auto joined = s.join();
            co_await joined;
        }
    };
    run(body(&order));
    CHECK(order == "ab");
}

TEST_CASE("what children own is destroyed once, when they end") {
    tally t;
    const auto child = [](counted held, bool fails) -> task<void> {
        co_await skein::yield();
        if (fails) throw std::runtime_error("failed");
        (void)held.value();
    };
    const auto body = [](tally* count, decltype(child) f) -> task<void> {
        scope s;
        for (int i = 0; i < 10; ++i) s.spawn(f(counted(*count), i == 5));
        CHECK(count->alive == 10);
        bool failed = false;
        try {
            auto joined = s.join();
            co_await joined;
        } catch (const std::runtime_error&) {
            failed = true;
        }
        CHECK(failed);
        CHECK(count->alive == 0);
    };
    run(body(&t, child));
    CHECK(t.alive == 0);
}

TEST_CASE("with_scope waits for the children also when its body throws") {
    bool cancelled = false;
    const auto inner = [](scope& s, bool* seen, bool fails) -> task<void> {
        s.spawn(wait_for_ever(seen));
        co_await skein::yield();
        if (fails) throw std::runtime_error("body");
        s.cancel();
    };
    CHECK_THROWS_AS(run(skein::with_scope(inner, &cancelled, true)), std::runtime_error);
    CHECK(cancelled);
    cancelled = false;
    run(skein::with_scope(inner, &cancelled, false));
    CHECK(cancelled);
}

TEST_CASE("ten thousand children end") {
    int ended = 0;
    const auto child = [](int i, int* count) -> task<void> {
        co_await skein::sleep_for(std::chrono::microseconds(i % 100));
        ++*count;
    };
    const auto body = [](int* count, decltype(child) f) -> task<void> {
        scope s;
        for (int i = 0; i < 10'000; ++i) s.spawn(f(i, count));
        auto joined = s.join();
        co_await joined;
    };
    run(body(&ended, child));
    CHECK(ended == 10'000);
}

TEST_CASE("a scope that was cancelled stays cancelled: later children end at their first wait") {
    std::string order;
    const auto body = [](std::string* out) -> task<void> {
        scope s;
        s.cancel();
        s.spawn(sleep_then(1s, out, 'x'));
        auto joined = s.join();
        co_await joined;
        CHECK(s.cancelled());
    };
    run(body(&order));
    CHECK(order.empty());
}

TEST_CASE("destroying a scope whose tasks run ends the program with a message") {
    const auto body = []() -> task<void> {
        scope s;
        std::string out;
        s.spawn(sleep_then(1s, &out, 'x'));
        co_await skein::yield();
    };
    const auto said = skein_test::abort_text([&] { run(body()); });
    CHECK(said.find("a scope is destroyed while 1 of its tasks run; co_await join() first") !=
          std::string::npos);
}

TEST_CASE("a failed child ends the body of with_scope, and its error is the outcome") {
    const auto failing = []() -> task<void> {
        co_await skein::sleep_for(1s);
        throw std::runtime_error("child");
    };
    const auto inner = [](scope& s, decltype(failing) f) -> task<void> {
        s.spawn(f());
        co_await skein::sleep_for(1h);
    };
    manual_loop world;
    CHECK_THROWS_AS(world.run(skein::with_scope(inner, failing)), std::runtime_error);
    CHECK(world.elapsed() == 1s);
}
