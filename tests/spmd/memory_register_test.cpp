// SPDX-License-Identifier: Apache-2.0
#include <skein/core/awaitable.hpp>
#include <skein/core/scope.hpp>
#include <skein/sim/loop.hpp>
#include <skein/spmd/memory_register.hpp>

#include <catch2/catch_test_macros.hpp>

using namespace skein;
using namespace skein::spmd;

namespace {

spmd::view numbered(std::uint64_t generation, std::uint64_t author) {
    spmd::view v;
    v.generation = generation;
    v.author = author;
    return v;
}

task<void> chain(memory_register* truth) {
    auto first = truth->compare_and_swap(0, numbered(1, 7));
    const auto first_came = co_await first;
    CHECK(first_came.swapped);
    auto late = truth->compare_and_swap(0, numbered(1, 8));
    const auto refused = co_await late;
    CHECK_FALSE(refused.swapped);
    CHECK(refused.now.author == 7);
    auto far = truth->compare_and_swap(1, numbered(3, 7));
    const auto far_came = co_await far;
    CHECK_FALSE(far_came.swapped);
    auto newest = truth->read();
    const auto newest_came = co_await newest;
    CHECK(newest_came.generation == 1);
}

task<void> watch(memory_register* truth, spmd::view* seen) {
    auto watching = truth->watch(1);
    *seen = co_await watching;
}

task<void> watched(memory_register* truth) {
    spmd::view seen;
    scope beside;
    auto first = truth->compare_and_swap(0, numbered(1, 7));
    (void)co_await first;
    beside.spawn(watch(truth, &seen));
    auto second = truth->compare_and_swap(1, numbered(2, 7));
    (void)co_await second;
    auto joined = beside.join();
    co_await joined;
    CHECK(seen.generation == 2);
}

task<void> places(memory_register* truth) {
    const coordinator_place mine{3, "a"}, theirs{4, "b"};
    auto claimed = truth->claim(mine);
    const auto claimed_came = co_await claimed;
    CHECK(claimed_came == mine);
    auto late = truth->claim(theirs);
    const auto late_came = co_await late;
    CHECK(late_came == mine);
    auto resigning = truth->resign();
    co_await resigning;
    auto changed = truth->watch_coordinator(mine);
    const auto changed_came = co_await changed;
    CHECK(changed_came.id == 0);
    auto next = truth->claim(theirs);
    const auto next_came = co_await next;
    CHECK(next_came == theirs);
}

} // namespace

TEST_CASE("views follow each other one by one, and only from the newest") {
    memory_register truth;
    sim::loop loop(1);
    loop.run(chain(&truth));
}

TEST_CASE("a watch of the register ends with a newer view") {
    memory_register truth;
    sim::loop loop(1);
    loop.run(watched(&truth));
}

TEST_CASE("one supervisor is the coordinator until it resigns") {
    memory_register truth;
    sim::loop loop(1);
    loop.run(places(&truth));
}
