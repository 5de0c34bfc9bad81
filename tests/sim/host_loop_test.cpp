// SPDX-License-Identifier: Apache-2.0
#include "net/support.hpp"

#include <skein/core/awaitable.hpp>
#include <skein/core/event.hpp>
#include <skein/sim/host_loop.hpp>

#include <catch2/catch_test_macros.hpp>

using namespace net_test;

namespace {

constexpr std::int64_t percent = 10'000'000; // of 10^9

/// Sleeps on whatever loop runs it; what the world's clock says then.
task<duration> sleep_and_look(sim::loop* world, duration length) {
    auto pause = sleep_for(length);
    co_await pause;
    co_return world->elapsed();
}

/// How long a sleep of a host's task takes in the world.
duration lasts(std::int64_t drift, duration length, duration ahead = {}) {
    sim::loop world(1);
    sim::host_loop host(world, {drift, ahead});
    return world.run(sim::run_on(host, sleep_and_look(&world, length)));
}

} // namespace

TEST_CASE("the timers of a fast host fire early in the world's time, those of a slow one late") {
    CHECK(lasts(0, 100s) >= 100s);
    CHECK(lasts(0, 100s) < 100s + 1us);
    const auto fast = lasts(5 * percent, 105s), slow = lasts(-5 * percent, 95s);
    CHECK(fast >= 100s);
    CHECK(fast < 100s + 1us);
    CHECK(slow >= 100s);
    CHECK(slow < 100s + 1us);
    CHECK(lasts(5 * percent, 105s, std::chrono::hours(700)) ==
          fast); // where a clock begins is nothing to its pace
}

TEST_CASE("several hosts and the world itself wait side by side, each by its own clock") {
    struct mark {
        std::string* order;
        char name;
    };
    const auto wait = [](mark m, duration length) -> task<void> {
        auto pause = sleep_for(length);
        co_await pause;
        *m.order += m.name;
    };
    const auto body = [](auto wait_for, sim::loop* world, std::string* order) -> task<void> {
        sim::host_loop fast(*world, {10 * percent, 3s}), slow(*world, {-10 * percent, 0s});
        scope all;
        all.spawn(wait_for(mark{order, 'w'}, 10s));
        all.spawn(sim::run_on(slow, wait_for(mark{order, 's'}, 10s)));
        all.spawn(sim::run_on(fast, wait_for(mark{order, 'f'}, 10s)));
        all.spawn(sim::run_on(slow, wait_for(mark{order, 'e'}, 8s)));
        auto joined = all.join();
        co_await joined;
    };
    const auto run = [&] {
        sim::loop world(5);
        std::string order;
        world.run(body(wait, &world, &order));
        CHECK(order == "efws");
        return world.trace_hash();
    };
    const auto once = run();
    CHECK(once == run());
}

TEST_CASE(
    "work on a host goes on on the loop of its caller, with its value, its error or cancelled") {
    const auto give = [](skein::loop* expected) -> task<int> {
        CHECK(&skein::loop::current() == expected);
        auto others = yield();
        co_await others;
        CHECK(&skein::loop::current() == expected);
        co_return 7;
    };
    const auto fail = []() -> task<void> {
        auto pause = sleep_for(1ms);
        co_await pause;
        throw error(errc::io, "broken there");
    };
    const auto body = [](auto give_one, auto fail_once, sim::loop* world) -> task<void> {
        sim::host_loop host(*world, {percent, 1s});
        auto giving = sim::run_on(host, give_one(&host));
        const int got = co_await giving;
        CHECK(got == 7);
        CHECK(&skein::loop::current() == world);
        auto failing = as_result(sim::run_on(host, fail_once()));
        const auto failed = co_await failing;
        REQUIRE(!failed);
        CHECK(failed.error().code() == errc::io);
        CHECK(&skein::loop::current() == world);
        const auto began = world->now();
        auto cut = as_result(with_timeout(sim::run_on(host, sleep_and_look(world, 10s)), 1s));
        const auto late = co_await cut;
        REQUIRE(!late);
        CHECK(late.error().code() == errc::timeout);
        CHECK(world->now() - began < 1s + 1ms);
        CHECK(&skein::loop::current() == world);
    };
    sim::loop world(2);
    world.run(body(give, fail, &world));
}

TEST_CASE("a limit that a host sets is one of its clock") {
    const auto body = [](sim::loop* world) -> task<duration> {
        event never;
        auto waiting = [](event* e) -> task<void> {
            auto waits = e->wait();
            co_await waits;
        };
        auto limited = as_result(with_timeout(waiting(&never), 110s));
        const auto outcome = co_await limited;
        CHECK(!outcome);
        co_return world->elapsed();
    };
    sim::loop world(3);
    sim::host_loop fast(world, {10 * percent, 0s});
    const auto took = world.run(sim::run_on(fast, body(&world)));
    CHECK(took >= 100s);
    CHECK(took < 100s + 1us);
}

TEST_CASE("plain calls on a host see its time, however long it has had nothing to do") {
    const auto body = [](sim::loop* world) -> task<void> {
        sim::host_loop host(*world, {50 * percent, 0s});
        auto pause = sleep_for(10s);
        co_await pause;
        {
            const skein::loop::use there(host);
            CHECK(skein::loop::current().now().time_since_epoch() >= 15s);
        }
        CHECK(&skein::loop::current() == world);
    };
    sim::loop world(4);
    world.run(body(&world));
}

TEST_CASE("the world goes on until what was adopted on a host has ended") {
    bool ended = false;
    const auto late = [](bool* out) -> task<void> {
        auto pause = sleep_for(5s);
        co_await pause;
        *out = true;
    };
    const auto leave = [](task<void> work) -> task<void> {
        skein::loop::current().adopt(std::move(work));
        co_return;
    };
    sim::loop world(6);
    sim::host_loop host(world, {percent, 0s});
    world.run(sim::run_on(host, leave(late(&ended))));
    CHECK(ended);
}

TEST_CASE("a clock that is given another rate goes on from where it is") {
    sim::loop world(7);
    const auto body = [](sim::loop* on) -> task<void> {
        sim::host_loop host(*on, {10 * percent, 0s});
        auto first = sleep_for(100s);
        co_await first;
        const auto before = host.exact_now();
        host.set_drift(-10 * percent);
        CHECK(host.exact_now() == before);
        auto second = sleep_for(100s);
        co_await second;
        const auto gone = host.exact_now() - before;
        CHECK(gone >= 90s);
        CHECK(gone < 90s + 1us);
    };
    world.run(body(&world));
}

TEST_CASE("the time of a host and the world's are found from each other to the nanosecond") {
    sim::loop world(8);
    seeded_random random(8);
    for (int i = 0; i < 200; ++i) {
        const auto drift = static_cast<std::int64_t>(random.below(100'000'001)) - 50'000'000;
        const duration ahead(static_cast<std::int64_t>(random.below(1'000'000'000'000'000)));
        const sim::host_loop host(world, {drift, ahead});
        for (int k = 0; k < 50; ++k) {
            const duration gone(static_cast<std::int64_t>(random.below(1ULL << (1 + k))));
            const auto here = time_point(ahead + gone);
            const auto at = host.world_at(here);
            REQUIRE(host.here_at(at) >= here);
            if (gone > duration(0)) REQUIRE(host.here_at(at - duration(1)) < here);
        }
    }
    const sim::host_loop host(world, {percent, 0s});
    CHECK(host.world_at(time_point::max()) == time_point::max());
}

TEST_CASE("a wall clock that is set leaves the time alone that decides") {
    sim::loop world(9);
    sim::host_loop host(world, {0, 5s});
    const auto body = [](sim::host_loop* h) -> task<void> {
        auto pause = sleep_for(10s);
        co_await pause;
        CHECK(h->wall() == 10s);
        const auto before = h->exact_now();
        h->set_wall_forward(-1h);
        CHECK(h->wall() == 10s - 1h);
        CHECK(h->exact_now() == before);
    };
    world.run(body(&host));
}

TEST_CASE("a seed draws clocks, and some draw none") {
    int none = 0, usual = 0, far = 0, jumping = 0;
    for (std::uint64_t seed = 0; seed < 600; ++seed) {
        seeded_random random(seed);
        const auto f = sim::clock_faults::draw(random);
        none += !f.any();
        usual += f.most_drift == 500'000;
        far += f.most_drift == 50'000'000;
        jumping += f.jump_every > 0s;
        if (!f.any()) continue;
        for (int i = 0; i < 5; ++i) {
            const auto one = f.draw_one(random);
            CHECK(one.parts_per_billion <= f.most_drift);
            CHECK(one.parts_per_billion >= -f.most_drift);
            CHECK(one.ahead <= f.most_ahead);
        }
    }
    CHECK(none > 150);
    CHECK(usual > 200);
    CHECK(far > 60);
    CHECK(jumping > 100);
}
