// SPDX-License-Identifier: Apache-2.0
#include <skein/core/as_completed.hpp>

#include <catch2/catch_test_macros.hpp>

#include <skein/core/sleep.hpp>

#include <string>

#include "../support/manual_loop.hpp"

using namespace std::chrono_literals;
using skein::task;
using skein_test::manual_loop;
using skein_test::run;

namespace {
task<int> give_or_fail_after(skein::duration d, int value) {
    co_await skein::sleep_for(d);
    if (value < 0) throw skein::error(skein::errc::io, "negative");
    co_return value;
}
std::vector<task<int>> some() {
    std::vector<task<int>> work;
    work.push_back(give_or_fail_after(3s, 30));
    work.push_back(give_or_fail_after(1s, 10));
    work.push_back(give_or_fail_after(2s, -1));
    return work;
}
} // namespace

TEST_CASE("outcomes come in the order in which the tasks end, errors among them", "[C13]") {
    manual_loop world;
    const auto body = []() -> task<std::string> {
        std::string order;
        auto results = skein::as_completed(some());
        for (;;) {
            auto t = results.next();
            auto done = co_await t;
            if (!done) break;
            order += std::to_string(done->index);
            order += done->value ? "=" + std::to_string(*done->value) + " " : "=error ";
        }
        co_return order;
    };
    CHECK(world.run(body()) == "1=10 2=error 0=30 ");
    CHECK(world.elapsed() == 3s);
}

TEST_CASE("closing early cancels what still runs and waits for it") {
    manual_loop world;
    const auto body = []() -> task<void> {
        auto results = skein::as_completed(some());
        auto t = results.next();
        const auto first = co_await t;
        CHECK(first->index == 1);
        auto closed = results.close();
        co_await closed;
    };
    world.run(body());
    CHECK(world.elapsed() == 1s);
}

namespace {
/// Notes its end, which takes a second when it is cancelled.
task<int> leave_slowly(bool* left) {
    struct note {
        bool* left;
        ~note() { *left = true; }
    } const noted{left};
    try {
        co_await skein::sleep_for(10s);
    } catch (const skein::error&) {}
    auto clearing = skein::shield(give_or_fail_after(1s, 0));
    co_return co_await clearing;
}
} // namespace

TEST_CASE("leaving early cancels what still runs, and the loop waits for its end", "[C13]") {
    manual_loop world;
    bool left = false;
    const auto body = [](bool* left_at) -> task<int> {
        auto work = some();
        work.push_back(leave_slowly(left_at));
        auto results = skein::as_completed(std::move(work));
        int index = -1;
        for (;;) {
            auto t = results.next();
            const auto done = co_await t;
            index = static_cast<int>(done->index);
            break;
        }
        co_return index;
    };
    CHECK(world.run(body(&left)) == 1);
    CHECK(left);
    CHECK(world.elapsed() == 2s);
}

TEST_CASE("an error that is thrown while others still run is kept") {
    manual_loop world;
    const auto body = []() -> task<void> {
        auto results = skein::as_completed(some());
        for (;;) {
            auto t = results.next();
            const auto done = co_await t;
            (void)done->value.value(); // of the second one: it throws
        }
    };
    try {
        world.run(body());
        FAIL("nothing was thrown");
    } catch (const skein::error& e) {
        CHECK(e.code() == skein::errc::io);
        CHECK(e.text() == "negative");
    }
    CHECK(world.elapsed() == 2s);
}

TEST_CASE("a stream may be left before anything has run, moved and replaced") {
    manual_loop world;
    const auto body = []() -> task<void> {
        auto first = skein::as_completed(some());
        auto second = std::move(first);
        first = skein::as_completed(some());
        co_return;
    };
    world.run(body());
    CHECK(world.elapsed() == 0s);
}

TEST_CASE("a stream of no tasks is at its end at once") {
    const auto body = []() -> task<bool> {
        std::vector<task<int>> none;
        auto results = skein::as_completed(std::move(none));
        auto t = results.next();
        const auto done = co_await t;
        co_return done.has_value();
    };
    CHECK_FALSE(run(body()));
}

TEST_CASE("a reader that is cancelled loses nothing") {
    const auto reader = [](skein::completion_stream<int>* from, int* read) -> task<void> {
        for (;;) {
            auto t = from->next();
            const auto done = co_await t;
            if (!done) break;
            ++*read;
        }
    };
    const auto body = [](decltype(reader) f) -> task<void> {
        auto results = skein::as_completed(some());
        int read = 0;
        skein::scope first;
        first.spawn(f(&results, &read));
        co_await skein::sleep_for(1500ms);
        first.cancel();
        auto gone = first.join();
        co_await gone;
        CHECK(read == 1);
        auto rest = f(&results, &read);
        co_await rest;
        CHECK(read == 3);
    };
    run(body(reader));
}
