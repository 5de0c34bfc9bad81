// SPDX-License-Identifier: Apache-2.0
#include <skein/core/wait.hpp>

#include <catch2/catch_test_macros.hpp>

#include <skein/core/scope.hpp>
#include <skein/core/sleep.hpp>

#include <string>

#include "../support/manual_loop.hpp"

using namespace std::chrono_literals;
using skein::errc;
using skein::task;
using skein::wait_queue;
using skein_test::run;

namespace {
task<void> wait_in(wait_queue* q, char name, std::string* out) {
    try {
        co_await q->wait();
        *out += name;
    } catch (const skein::error& e) {
        CHECK(e.code() == errc::cancelled);
        *out += '-';
    }
}
task<void> stop_after(skein::cancel_source* stop) {
    co_await skein::sleep_for(1s);
    stop->request();
}

struct single : skein::waiter {
    bool await_ready() const noexcept { return false; }
    template <class Promise>
    bool await_suspend(std::coroutine_handle<Promise> h) {
        return arm(h);
    }
    void await_resume() const { throw_if_cancelled(); }
};
} // namespace

TEST_CASE("who waits first is woken first") {
    std::string order;
    const auto body = [](std::string* out) -> task<void> {
        wait_queue q;
        CHECK_FALSE(q.wake_one());
        skein::scope s;
        for (const char name : {'a', 'b', 'c'}) s.spawn(wait_in(&q, name, out));
        co_await skein::yield();
        CHECK_FALSE(q.empty());
        CHECK(q.wake_one());
        CHECK(out->empty()); // resumed by the loop, not in the call
        co_await skein::yield();
        CHECK(*out == "a");
        q.wake_all();
        CHECK(q.empty());
        auto joined = s.join();
        co_await joined;
    };
    run(body(&order));
    CHECK(order == "abc");
}

TEST_CASE("a cancelled waiter leaves the line, the others stay in it") {
    std::string order;
    const auto body = [](std::string* out) -> task<void> {
        wait_queue q;
        skein::cancel_source stop;
        skein::scope s;
        s.spawn(wait_in(&q, 'a', out));
        s.spawn(skein::with_cancel(stop.token(), wait_in(&q, 'b', out)));
        s.spawn(wait_in(&q, 'c', out));
        co_await skein::yield();
        stop.request();
        q.wake_all();
        auto joined = s.join();
        co_await joined;
    };
    run(body(&order));
    CHECK(order == "-ac");
}

TEST_CASE("an uncancellable wait ends only when woken") {
    std::string order;
    const auto sure = [](wait_queue* q, std::string* out) -> task<void> {
        co_await q->wait_uncancellable();
        *out += 'w';
    };
    const auto body = [](std::string* out, decltype(sure) f) -> task<void> {
        wait_queue q;
        skein::cancel_source stop;
        skein::scope s;
        s.spawn(skein::with_cancel(stop.token(), f(&q, out)));
        s.spawn(stop_after(&stop));
        co_await skein::sleep_for(2s);
        CHECK(out->empty());
        q.wake_all();
        auto joined = s.join();
        co_await joined;
    };
    run(body(&order, sure));
    CHECK(order == "w");
}

TEST_CASE("a single waiter ends once, by the first reason") {
    const auto holder = [](single* w, std::string* out) -> task<void> {
        try {
            co_await *w;
            *out += 'w';
        } catch (const skein::error&) {
            *out += '-';
        }
    };
    std::string order;
    const auto body = [](std::string* out, decltype(holder) f) -> task<void> {
        skein::cancel_source stop;
        skein::scope s;
        single first;
        first.wake(); // not waiting: ignored
        s.spawn(skein::with_cancel(stop.token(), f(&first, out)));
        co_await skein::sleep_for(1s);
        CHECK(first.is_waiting());
        first.wake();
        first.wake();
        CHECK_FALSE(first.is_waiting());
        stop.request();
        auto joined = s.join();
        co_await joined;
    };
    run(body(&order, holder));
    CHECK(order == "w");
}
