// SPDX-License-Identifier: Apache-2.0
#include <skein/core/sleep.hpp>
#include <skein/rt/detail/departures.hpp>

#include <chrono>
#include <optional>
#include <utility>

#include <catch2/catch_test_macros.hpp>

#include "../support/manual_loop.hpp"

namespace rt_departures_test {

using namespace skein;
using namespace std::chrono_literals;
using rt::detail::departures;
using skein_test::manual_loop;

namespace {

task<void> leave_after(departures::place mine, time_span delay) {
    const auto held = std::move(mine);
    co_await sleep_for(delay);
}

/// How long a wait takes.
task<duration> waited(departures* all) {
    const auto began = loop::current().exact_now();
    auto waiting = all->wait();
    co_await waiting;
    co_return loop::current().exact_now() - began;
}

} // namespace

TEST_CASE("who waits for departures waits for those that are there") {
    manual_loop world;
    departures all;
    world.run([](departures* all) -> task<void> {
        CHECK_FALSE(all->has_any());
        auto none = waited(all);
        const auto at_once = co_await none;
        CHECK(at_once == 0ms);
        scope leaving;
        departures::place first(*all), second(*all);
        leaving.spawn(leave_after(std::move(second), 10ms));
        leaving.spawn(leave_after(std::move(first), 20ms));
        scope later;
        later.spawn([](departures* all) -> task<void> {
            co_await sleep_for(5ms); // behind the one who waits: not for this one
            departures::place third(*all);
            co_await sleep_for(50ms);
        }(all));
        auto both = waited(all);
        const auto took = co_await both;
        CHECK(took == 20ms);
        CHECK(all->has_any());
        auto left = leaving.join();
        co_await left;
        auto left_later = later.join();
        co_await left_later;
        CHECK_FALSE(all->has_any());
    }(&all));
}

TEST_CASE("nobody waits twice for departures that find no room") {
    manual_loop world;
    departures all;
    world.run([](departures* all) -> task<void> {
        std::optional<departures::place> slow(std::in_place, *all);
        auto in_vain = waited(all);
        const auto took = co_await in_vain;
        CHECK(took == duration(departures::patience));
        CHECK_FALSE(all->has_any());
        std::optional<departures::place> behind(std::in_place, *all);
        CHECK_FALSE(all->has_any()); // it comes behind the other one
        slow.reset();
        CHECK(all->has_any());
        behind.reset();
        CHECK_FALSE(all->has_any());
        co_return;
    }(&all));
}

} // namespace rt_departures_test
