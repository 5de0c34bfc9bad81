// SPDX-License-Identifier: Apache-2.0
#include <tests/apps/apps.hpp>
#include <tests/support/sim_cluster.hpp>

#include <skein/rt/wait_refs.hpp>

#include <catch2/catch_test_macros.hpp>

namespace wait_refs_test {

using namespace skein;
using namespace std::chrono_literals;
using rt_test::later;
using test::in_sim;
using test::sim_cluster;

std::vector<ref<int>> start(const std::vector<int>& ms) {
    std::vector<ref<int>> refs;
    for (const int m : ms) refs.push_back(remote<&later>.with({.cpus = 0})(m, m));
    return refs;
}

TEST_CASE("wait ends when so many calls are done, and keeps their order", "[C12][rt][wait_refs]") {
    in_sim(1, 2, [](sim_cluster& c) -> task<void> {
        auto refs = start({300, 50, 200, 100});
        auto some = wait(refs, 2);
        auto now = co_await some;
        REQUIRE(now.done.size() == 2);
        REQUIRE(now.pending.size() == 2);
        const int a = co_await now.done[0], b = co_await now.done[1];
        CHECK(a == 50);
        CHECK(b == 100);
        CHECK(now.pending[0].state() == refs[0].state());
        auto rest = wait(std::span<const ref<int>>(now.pending), 100);
        const auto last = co_await rest;
        CHECK(last.done.size() == 2);
        CHECK(last.pending.empty());
        CHECK(c.driver().pending() == 0);
    });
}

TEST_CASE("wait ends with its time, by the loop's clock", "[C12][rt][wait_refs]") {
    in_sim(2, 2, [](sim_cluster&) -> task<void> {
        auto refs = start({50, 1'000'000});
        const auto began = loop::current().exact_now();
        auto some = wait(refs, 2, 5s);
        const auto now = co_await some;
        CHECK(loop::current().exact_now() - began == 5s);
        CHECK(now.done.size() == 1);
        REQUIRE(now.pending.size() == 1);
        auto look = wait(refs, 2, 0s);
        const auto seen = co_await look;
        CHECK(seen.done.size() == 1);
        CHECK(loop::current().exact_now() - began == 5s);
        refs[1].cancel();
    });
}

TEST_CASE("a call that failed is done, and wait does not throw its error", "[C12][rt][wait_refs]") {
    in_sim(3, 1, [](sim_cluster&) -> task<void> {
        std::vector<ref<int>> refs;
        refs.push_back(remote<&rt_test::fail_with_text>("no"));
        auto all = wait(refs, 1);
        const auto now = co_await all;
        REQUIRE(now.done.size() == 1);
        CHECK(now.done[0].state()->failed());
        std::vector<ref<void>> none;
        auto nothing = wait(none, 3);
        const auto empty = co_await nothing;
        CHECK(empty.done.empty());
    });
}

TEST_CASE("cancelling a wait leaves the calls alone", "[C12][rt][wait_refs]") {
    in_sim(4, 1, [](sim_cluster&) -> task<void> {
        auto refs = start({100, 200});
        cancel_source stop;
        auto waiting = wait(refs, 2, 1h);
        auto guarded = with_cancel(stop.token(), std::move(waiting));
        auto limited = with_timeout(std::move(guarded), 10ms);
        auto asked = as_result(std::move(limited));
        const auto outcome = co_await asked;
        REQUIRE_FALSE(outcome);
        CHECK(outcome.error().code() == errc::timeout); // of who asked, not of the wait
        stop.request();
        auto again = wait(refs, 2);
        auto under = with_cancel(stop.token(), std::move(again));
        auto next = as_result(std::move(under));
        const auto cancelled = co_await next;
        REQUIRE_FALSE(cancelled);
        CHECK(cancelled.error().code() == errc::cancelled);
        const int a = co_await refs[0], b = co_await refs[1];
        CHECK(a + b == 300);
    });
}

} // namespace wait_refs_test
