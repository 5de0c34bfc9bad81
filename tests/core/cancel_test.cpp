// SPDX-License-Identifier: Apache-2.0
#include <skein/core/cancel.hpp>

#include <catch2/catch_test_macros.hpp>

#include <skein/core/event.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/sleep.hpp>

#include <optional>

#include "../support/counted.hpp"
#include "../support/manual_loop.hpp"

using namespace std::chrono_literals;
using skein::cancel_source;
using skein::cancel_token;
using skein::errc;
using skein::task;
using skein_test::counted;
using skein_test::run;
using skein_test::tally;

namespace {

/// Sleeps in small steps and says how it ended.
task<void> steps(int* count, std::optional<errc>* end) {
    try {
        for (;;) {
            co_await skein::sleep_for(1s);
            ++*count;
        }
    } catch (const skein::error& e) {
        *end = e.code();
        throw;
    }
}
task<void> request_after(cancel_source* stop, skein::duration d) {
    co_await skein::sleep_for(d);
    stop->request();
}
task<void> swallow(task<void> work) {
    try {
        co_await work;
    } catch (const skein::error& e) {
        CHECK(e.code() == errc::cancelled);
    }
}

} // namespace

TEST_CASE("an empty token is never cancelled; a copy shares the request") {
    const cancel_token none;
    CHECK_FALSE(none.requested());
    cancel_source source;
    const auto token = source.token();
    const auto copy = token;
    CHECK_FALSE(copy.requested());
    source.request();
    source.request();
    CHECK(copy.requested());
    CHECK(source.token().requested());
}

TEST_CASE("a wait under a token ends when it is requested, and every later wait too") {
    int count = 0, later = 0;
    std::optional<errc> end;
    const auto stubborn = [](int* n, std::optional<errc>* e, int* refused) -> task<void> {
        auto work = steps(n, e);
        try {
            co_await work;
        } catch (const skein::error&) {}
        for (int i = 0; i < 3; ++i) {
            try {
                co_await skein::sleep_for(1s);
            } catch (const skein::error& again) {
                CHECK(again.code() == errc::cancelled);
                ++*refused;
            }
        }
    };
    const auto body = [](int* n, std::optional<errc>* e, int* refused,
                         decltype(stubborn) f) -> task<void> {
        cancel_source stop;
        skein::scope s;
        s.spawn(skein::with_cancel(stop.token(), f(n, e, refused)));
        s.spawn(request_after(&stop, 3500ms));
        auto joined = s.join();
        co_await joined;
    };
    run(body(&count, &end, &later, stubborn));
    CHECK(count == 3);
    CHECK(end == errc::cancelled);
    CHECK(later == 3);
}

TEST_CASE("a task under a token that was requested before ends at its first wait") {
    int count = 0;
    std::optional<errc> end;
    cancel_source stop;
    stop.request();
    CHECK_THROWS_AS(run(skein::with_cancel(stop.token(), steps(&count, &end))), skein::error);
    CHECK(count == 0);
    CHECK(end == errc::cancelled);
}

TEST_CASE("inner tasks inherit the cancellation; the awaiting task goes on without it") {
    const auto body = []() -> task<void> {
        cancel_source stop;
        int count = 0;
        std::optional<errc> end;
        skein::scope s;
        s.spawn(request_after(&stop, 1500ms));
        auto work = skein::with_cancel(stop.token(), swallow(steps(&count, &end)));
        co_await work;
        CHECK(end == errc::cancelled);
        co_await skein::sleep_for(1s); // outside of the token: not cancelled
        auto joined = s.join();
        co_await joined;
    };
    run(body());
}

TEST_CASE("the inner token and the outer cancellation both end the work") {
    for (const bool from_outside : {false, true}) {
        int count = 0;
        std::optional<errc> end;
        const auto body = [](bool outside, int* n, std::optional<errc>* e) -> task<void> {
            cancel_source outer, inner;
            skein::scope s;
            auto work = skein::with_cancel(inner.token(), steps(n, e));
            s.spawn(swallow(skein::with_cancel(outer.token(), std::move(work))));
            s.spawn(request_after(outside ? &outer : &inner, 2500ms));
            auto joined = s.join();
            co_await joined;
        };
        run(body(from_outside, &count, &end));
        CHECK(count == 2);
        CHECK(end == errc::cancelled);
    }
}

TEST_CASE("shielded work finishes, and the wait after it notices the cancellation") {
    bool finished = false, noticed = false;
    const auto clean_up = [](bool* done) -> task<void> {
        co_await skein::sleep_for(10s);
        *done = true;
    };
    const auto worker = [](bool* done, bool* saw, decltype(clean_up) f) -> task<void> {
        auto sure = skein::shield(f(done));
        co_await sure;
        try {
            co_await skein::sleep_for(1s);
        } catch (const skein::error& e) {
            *saw = e.code() == errc::cancelled;
        }
    };
    const auto body = [](bool* done, bool* saw, decltype(worker) w,
                         decltype(clean_up) f) -> task<void> {
        cancel_source stop;
        skein::scope s;
        s.spawn(skein::with_cancel(stop.token(), w(done, saw, f)));
        s.spawn(request_after(&stop, 1s));
        auto joined = s.join();
        co_await joined;
    };
    run(body(&finished, &noticed, worker, clean_up));
    CHECK(finished);
    CHECK(noticed);
}

TEST_CASE("a request made while the work is already going on is not a second end") {
    // The event is set and the task cancelled in the same turn: the wait that was over stays over.
    bool got = false;
    const auto waiter = [](skein::event* e, bool* out) -> task<void> {
        co_await e->wait();
        *out = true;
    };
    const auto body = [](bool* out, decltype(waiter) f) -> task<void> {
        cancel_source stop;
        skein::event e;
        skein::scope s;
        s.spawn(skein::with_cancel(stop.token(), f(&e, out)));
        co_await skein::sleep_for(1s);
        e.set();
        stop.request();
        auto joined = s.join();
        co_await joined;
    };
    run(body(&got, waiter));
    CHECK(got);
}

TEST_CASE("a source and its tokens may go before or after the work") {
    const auto body = []() -> task<void> {
        auto source = std::make_unique<cancel_source>();
        auto work = skein::with_cancel(source->token(),
                                       []() -> task<void> { co_await skein::sleep_for(1s); }());
        source.reset();
        co_await work;
    };
    run(body());
    cancel_source source;
    {
        auto never = skein::with_cancel(source.token(), []() -> task<void> { co_return; }());
    }
    source.request();
}

TEST_CASE("what cancelled tasks own is destroyed once") {
    tally t;
    const auto worker = [](counted held) -> task<void> {
        co_await skein::sleep_for(1h);
        (void)held.value();
    };
    const auto body = [](tally* count, decltype(worker) f) -> task<void> {
        cancel_source stop;
        skein::scope s;
        for (int i = 0; i < 20; ++i)
            s.spawn(swallow(skein::with_cancel(stop.token(), f(counted(*count)))));
        s.spawn(request_after(&stop, 1s));
        auto joined = s.join();
        co_await joined;
        CHECK(count->alive == 0);
    };
    run(body(&t, worker));
}
