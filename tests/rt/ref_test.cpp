// SPDX-License-Identifier: Apache-2.0
#include <tests/apps/apps.hpp>
#include <tests/support/sim_cluster.hpp>

#include <skein/rt/ref.hpp>

#include <catch2/catch_test_macros.hpp>

using namespace skein;
using namespace rt_test;
using namespace std::chrono_literals;
using test::in_sim;
using test::sim_cluster;

namespace {

task<int> wait_for(ref<int> r) { co_return co_await r; }

} // namespace

TEST_CASE("a ref is one pointer wide and copies share the value", "[C2][rt][ref]") {
    static_assert(sizeof(ref<row>) == sizeof(void*));
    in_sim(1, 1, [](sim_cluster&) -> task<void> {
        auto r = remote<&twice>(3);
        auto copy = r;
        {
            const auto got = co_await copy;
            CHECK(got == 6);
        }
        CHECK(r.ready());
        {
            const auto got = co_await r;
            CHECK(got == 6);
        }
        ref<int> none;
        CHECK_FALSE(none);
    });
}

TEST_CASE("several tasks wait for one ref", "[C3][rt][ref]") {
    in_sim(2, 1, [](sim_cluster&) -> task<void> {
        auto r = remote<&later>(4, 10);
        std::vector<task<int>> waiting;
        for (int i = 0; i < 5; ++i) waiting.push_back(wait_for(r));
        auto done = all(std::move(waiting));
        {
            const auto got = co_await std::move(done);
            CHECK(got == std::vector<int>(5, 4));
        }
    });
}

TEST_CASE("awaiting an rvalue takes the value out when it is the last ref", "[C3][rt][ref]") {
    in_sim(3, 1, [](sim_cluster&) -> task<void> {
        row in;
        in.v.assign(1000, 1.f);
        auto r = remote<&scale>(in, 2.f);
        auto second = r;
        auto copied = co_await std::move(r);
        CHECK(copied.v.size() == 1000);
        auto moved = co_await std::move(second);
        CHECK(moved == copied);
    });
}

TEST_CASE("cancelling the wait does not cancel the call", "[C8][rt][ref]") {
    in_sim(4, 1, [](sim_cluster& c) -> task<void> {
        auto r = remote<&later>(9, 100);
        auto limited = with_timeout(wait_for(r), 10ms);
        auto asked = as_result(std::move(limited));
        auto outcome = co_await std::move(asked);
        REQUIRE_FALSE(outcome);
        CHECK(outcome.error().code() == errc::timeout);
        CHECK(c.running() == 1);
        {
            const auto got = co_await r;
            CHECK(got == 9);
        }
    });
}

TEST_CASE("dropping a ref does not cancel the call", "[C1][C5][rt][ref]") {
    in_sim(5, 1, [](sim_cluster& c) -> task<void> {
        { auto dropped = remote<&later>(9, 100); }
        co_await sleep_for(50ms);
        CHECK(c.running() == 1);
        co_await sleep_for(100ms);
        CHECK(c.running() == 0);
        CHECK(c.driver().pending() == 0);
    });
}

TEST_CASE("a failure can be awaited again", "[C3][C4][rt][ref]") {
    in_sim(6, 1, [](sim_cluster&) -> task<void> {
        auto r = remote<&fail_with_text>("x");
        for (int i = 0; i < 2; ++i) {
            auto asked = as_result(r);
            {
                const auto got = co_await std::move(asked);
                CHECK_FALSE(got);
            }
        }
    });
}

TEST_CASE("a ref outlives its runtime", "[rt][ref]") {
    ref<int> done, never;
    in_sim(7, 1, [&](sim_cluster&) -> task<void> {
        done = remote<&twice>(2);
        {
            const auto got = co_await done;
            CHECK(got == 4);
        }
        never = remote<&later>(1, 1000000);
    });
    CHECK(done.ready());
    CHECK(never.ready()); // it failed when the runtime ended
    never.cancel();
}
