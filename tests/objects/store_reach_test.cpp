// SPDX-License-Identifier: Apache-2.0
// Which stores a process reaches, and how long it waits for them.
#include <skein/core/scope.hpp>
#include <skein/core/sleep.hpp>
#include <skein/objects/store_reach.hpp>
#include <skein/sim/loop.hpp>

#include <chrono>
#include <cstdint>
#include <utility>
#include <vector>

#include <catch2/catch_test_macros.hpp>

namespace store_reach_test {

using namespace skein;
using namespace std::chrono_literals;
using objects::store_reach;

objects::reached_note these(std::vector<std::uint64_t> all) {
    objects::reached_note out;
    out.stores = std::move(all);
    return out;
}
task<void> hear_later(store_reach* at, duration after, std::vector<std::uint64_t> all) {
    co_await sleep_for(after);
    at->hear(these(std::move(all)));
}

TEST_CASE("a process reaches its own store, and those with a link", "[objects][far][V16]") {
    store_reach reach(7);
    CHECK(reach.has(7));
    CHECK_FALSE(reach.has(8));
    CHECK_FALSE(reach.has(0));
    reach.hear(these({8, 9}));
    CHECK((reach.has(8) && reach.has(9)));
    reach.hear(these({9}));
    CHECK_FALSE(reach.has(8));
    reach.end();
    CHECK_FALSE((reach.has(7) || reach.has(9)));
}

task<void> wait_once(sim::loop* loop) {
    store_reach reach(7);
    scope news;
    news.spawn(hear_later(&reach, 1s, {8}));
    auto first = reach.wait(8);
    const bool is_there = co_await first;
    CHECK((is_there && loop->elapsed() < 2s));
    auto second = reach.wait(9);
    const bool is_other = co_await second;
    CHECK_FALSE(is_other);
    CHECK(loop->elapsed() < 4s);
    const auto began = loop->elapsed(); // the time is over
    auto third = reach.wait(10);
    const bool is_third = co_await third;
    CHECK_FALSE(is_third);
    CHECK(loop->elapsed() == began);
    auto joined = news.join();
    co_await joined;
}

TEST_CASE("it is waited for other stores at the first object, and not again",
          "[objects][far][V16]") {
    sim::loop loop(3);
    loop.run(wait_once(&loop));
}

task<void> end_ends_waits() {
    store_reach reach(7);
    reach.end();
    auto waits = reach.wait(8);
    const bool is_there = co_await waits;
    CHECK_FALSE(is_there);
}

TEST_CASE("without the own store none is reached", "[objects][far]") {
    sim::loop loop(3);
    loop.run(end_ends_waits());
}

} // namespace store_reach_test
