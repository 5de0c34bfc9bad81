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
task<int> give_after(skein::duration d, int value) {
    co_await skein::sleep_for(d);
    if (value < 0) throw skein::error(skein::errc::io, "negative");
    co_return value;
}
std::vector<task<int>> some() {
    std::vector<task<int>> work;
    work.push_back(give_after(3s, 30));
    work.push_back(give_after(1s, 10));
    work.push_back(give_after(2s, -1));
    return work;
}
} // namespace

TEST_CASE("outcomes come in the order in which the tasks end, errors among them") {
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
