// SPDX-License-Identifier: Apache-2.0
#include <skein/core/channel.hpp>

#include <catch2/catch_test_macros.hpp>

#include <skein/core/scope.hpp>
#include <skein/core/sleep.hpp>

#include <algorithm>
#include <memory>
#include <vector>

#include "../support/counted.hpp"
#include "../support/manual_loop.hpp"

using namespace std::chrono_literals;
using skein::channel;
using skein::errc;
using skein::task;
using skein_test::counted;
using skein_test::run;
using skein_test::tally;

namespace {
task<void> send_all(channel<int>* c, int from, int to, bool closes) {
    for (int i = from; i < to; ++i) co_await c->send(i);
    if (closes) c->close();
}
task<void> receive_all(channel<int>* c, std::vector<int>* out) {
    while (auto item = co_await c->receive()) out->push_back(*item);
}
task<void> note_error(task<void> work, errc* out) {
    try {
        co_await work;
    } catch (const skein::error& e) {
        *out = e.code();
    }
}
} // namespace

TEST_CASE("values come out in the order they went in, for every capacity") {
    for (const std::size_t capacity : {0, 1, 3, 1000}) {
        std::vector<int> got;
        const auto body = [](std::size_t n, std::vector<int>* out) -> task<void> {
            channel<int> c(n);
            skein::scope s;
            s.spawn(send_all(&c, 0, 100, true));
            s.spawn(receive_all(&c, out));
            auto joined = s.join();
            co_await joined;
        };
        run(body(capacity, &got));
        REQUIRE(got.size() == 100);
        for (int i = 0; i < 100; ++i) REQUIRE(got[static_cast<std::size_t>(i)] == i);
    }
}

TEST_CASE("a full channel makes its sender wait") {
    const auto body = []() -> task<void> {
        channel<int> c(2);
        skein::scope s;
        s.spawn(send_all(&c, 0, 10, true));
        co_await skein::sleep_for(1s);
        CHECK(c.size() == 2);
        CHECK_FALSE(c.try_send(99));
        CHECK(c.try_receive() == 0);
        CHECK(c.size() == 2); // the sender's next value moved up
        std::vector<int> rest;
        auto t = receive_all(&c, &rest);
        co_await t;
        CHECK(rest.size() == 9);
        auto joined = s.join();
        co_await joined;
    };
    run(body());
}

TEST_CASE("with capacity zero a send ends when its value is received") {
    const auto body = []() -> task<void> {
        channel<int> c(0);
        int value = 1;
        CHECK_FALSE(c.try_send(value));
        skein::scope s;
        s.spawn(send_all(&c, 7, 8, false));
        co_await skein::sleep_for(1s);
        CHECK(s.size() == 1);
        const auto got = co_await c.receive();
        CHECK(got == 7);
        auto joined = s.join();
        co_await joined;
    };
    run(body());
}

TEST_CASE("each value goes to exactly one of several receivers") {
    std::vector<int> got;
    const auto body = [](std::vector<int>* out) -> task<void> {
        channel<int> c(4);
        skein::scope s;
        for (int i = 0; i < 5; ++i) s.spawn(receive_all(&c, out));
        skein::scope senders;
        for (int i = 0; i < 3; ++i) senders.spawn(send_all(&c, i * 100, i * 100 + 100, false));
        auto sent = senders.join();
        co_await sent;
        c.close();
        auto joined = s.join();
        co_await joined;
    };
    run(body(&got));
    std::vector<int> sorted = got;
    std::sort(sorted.begin(), sorted.end());
    REQUIRE(sorted.size() == 300);
    for (int i = 0; i < 300; ++i) REQUIRE(sorted[static_cast<std::size_t>(i)] == i);
}

TEST_CASE("after close what is queued is still received, then nothing, and sends throw") {
    const auto body = []() -> task<void> {
        channel<int> c(5);
        CHECK(c.try_send(1));
        CHECK(c.try_send(2));
        c.close();
        c.close();
        CHECK(c.is_closed());
        CHECK_FALSE(c.try_send(3));
        const auto one = co_await c.receive();
        const auto two = co_await c.receive();
        const auto none = co_await c.receive();
        CHECK(one == 1);
        CHECK(two == 2);
        CHECK_FALSE(none);
        errc code = errc::unknown;
        auto t = note_error(send_all(&c, 0, 1, false), &code);
        co_await t;
        CHECK(code == errc::closed);
    };
    run(body());
}

TEST_CASE("close wakes senders with an error and receivers with nothing") {
    const auto body = []() -> task<void> {
        channel<int> full(0), empty(0);
        errc code = errc::unknown;
        std::vector<int> got;
        skein::scope s;
        s.spawn(note_error(send_all(&full, 0, 1, false), &code));
        s.spawn(receive_all(&empty, &got));
        co_await skein::sleep_for(1s);
        full.close();
        empty.close();
        auto joined = s.join();
        co_await joined;
        CHECK(code == errc::closed);
        CHECK(got.empty());
    };
    run(body());
}

TEST_CASE("a cancelled receive takes no value, a cancelled send gives none") {
    const auto body = []() -> task<void> {
        channel<int> c(0);
        std::vector<int> got;
        skein::scope receivers;
        receivers.spawn(receive_all(&c, &got));
        co_await skein::yield();
        receivers.cancel();
        auto gone = receivers.join();
        co_await gone;
        CHECK_FALSE(c.try_send(5));

        skein::scope senders;
        senders.spawn(send_all(&c, 1, 2, false));
        co_await skein::yield();
        senders.cancel();
        auto gone_too = senders.join();
        co_await gone_too;
        CHECK_FALSE(c.try_receive());
        CHECK(got.empty());
    };
    run(body());
}

TEST_CASE("a value handed over at the moment of cancellation is delivered, not lost") {
    const auto body = []() -> task<void> {
        channel<int> c(0);
        std::vector<int> got;
        skein::scope receivers;
        receivers.spawn(receive_all(&c, &got));
        co_await skein::yield();
        CHECK(c.try_send(5));
        receivers.cancel();
        auto gone = receivers.join();
        co_await gone;
        CHECK(got == std::vector<int>{5});
    };
    run(body());
}

TEST_CASE("values are moved, and what is not received is destroyed with the channel") {
    tally t;
    const auto body = [](tally* count) -> task<void> {
        channel<counted> c(2);
        counted value(*count, 3);
        co_await c.send(std::move(value));
        auto another = std::make_unique<counted>(*count, 4);
        CHECK(c.try_send(std::move(*another)));
        const auto got = co_await c.receive();
        REQUIRE(got);
        CHECK(got->value() == 3);
    };
    run(body(&t));
    CHECK(t.alive == 0);
    CHECK(t.copied == 0);
}

TEST_CASE("a value that could not be sent is unchanged") {
    channel<std::unique_ptr<int>> c(1);
    auto first = std::make_unique<int>(1), second = std::make_unique<int>(2);
    CHECK(c.try_send(first));
    CHECK_FALSE(first);
    CHECK_FALSE(c.try_send(second));
    CHECK(second);
}
