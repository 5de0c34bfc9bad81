// SPDX-License-Identifier: Apache-2.0
#include <tests/apps/apps.hpp>
#include <tests/support/sim_cluster.hpp>

#include <skein/core/log.hpp>
#include <skein/rt/actor.hpp>

#include <set>

#include <catch2/catch_test_macros.hpp>

using namespace skein;
using namespace rt_test;
using namespace std::chrono_literals;
using test::in_sim;
using test::sim_cluster;

TEST_CASE("an actor keeps its state between calls", "[M3][rt][actor]") {
    in_sim(1, 2, [](sim_cluster&) -> task<void> {
        auto c = co_await actor<counter>(10);
        auto a = c.call<&counter::add>(5);
        auto b = remote<&counter::add>(c, 7);
        {
            const auto got = co_await a;
            CHECK(got == 15);
        }
        {
            const auto got = co_await b;
            CHECK(got == 22);
        }
        {
            const auto got = co_await c.call<&counter::get>();
            CHECK(got == 22);
        }
    });
}

TEST_CASE("calls of one caller run in order, also behind a pending ref", "[M2][rt][actor]") {
    in_sim(2, 2, [](sim_cluster&) -> task<void> {
        auto j = co_await actor<journal>();
        auto slow = remote<&later>(2, 100);
        auto a = j.call<&journal::note>(1);
        auto b = j.call<&journal::note>(slow);
        auto copy = j;
        auto d = copy.call<&journal::note>(3); // through another handle
        auto seen = j.call<&journal::all>();
        co_await a;
        CHECK_FALSE(d.ready());
        const auto all_seen = co_await seen;
        CHECK(all_seen == std::vector<int>{1, 2, 3});
        co_await b;
        co_await d;
    });
}

TEST_CASE("coroutine methods start in order and interleave only where they suspend",
          "[M3][M4][rt][actor]") {
    in_sim(3, 1, [](sim_cluster&) -> task<void> {
        auto j = co_await actor<journal>();
        std::vector<ref<void>> refs;
        refs.push_back(j.call<&journal::note_async>(1));
        refs.push_back(
            j.call<&journal::note>(2)); // a plain call does not overtake a coroutine's start
        refs.push_back(j.call<&journal::note_async>(3));
        refs.push_back(j.call<&journal::note>(4));
        for (auto& r : refs) co_await r;
        const auto seen = co_await j.call<&journal::all>();
        REQUIRE(seen.size() == 6);
        std::vector<int> starts, ends;
        for (int i : seen) (i > 0 ? starts : ends).push_back(i);
        CHECK(starts == std::vector<int>{1, 2, 3, 4});
        CHECK(ends == std::vector<int>{-1, -3});
    });
}

TEST_CASE("a failed argument does not hold up the calls behind it", "[rt][actor]") {
    in_sim(4, 1, [](sim_cluster&) -> task<void> {
        auto j = co_await actor<journal>();
        auto bad = j.call<&journal::note>(remote<&fail_with_text>("no"));
        auto good = j.call<&journal::note>(2);
        co_await good;
        auto asked = as_result(bad);
        {
            const auto got = co_await std::move(asked);
            CHECK_FALSE(got);
        }
        const auto left = co_await j.call<&journal::all>();
        CHECK(left == std::vector<int>{2});
    });
}

TEST_CASE("cancelling the first in line lets the next go", "[rt][actor]") {
    in_sim(5, 1, [](sim_cluster&) -> task<void> {
        auto j = co_await actor<journal>();
        auto never = remote<&later>(1, 100000000);
        auto waits = j.call<&journal::note>(never);
        auto behind = j.call<&journal::note>(2);
        waits.cancel();
        co_await behind;
        auto asked = as_result(waits);
        auto outcome = co_await std::move(asked);
        REQUIRE_FALSE(outcome);
        CHECK(outcome.error().code() == errc::cancelled);
        never.cancel();
    });
}

// What a program would be warned of is an error here.
#pragma GCC diagnostic push
#pragma GCC diagnostic error "-Wunused-result"
#pragma GCC diagnostic error "-Wunused-value"
TEST_CASE("a method may be called without taking its ref", "[C5][rt][actor]") {
    in_sim(16, 1, [](sim_cluster&) -> task<void> {
        auto c = co_await actor<counter>(1);
        c.call<&counter::add>(5);
        remote<&counter::add>(c, 6);
        const auto got = co_await c.call<&counter::get>();
        CHECK(got == 12);
    });
}
#pragma GCC diagnostic pop

TEST_CASE("a failure that nobody can see is logged, others are not", "[C6][rt][actor]") {
    struct log_lines {
        std::vector<std::string> seen;
        log_lines() {
            logging::set_sink([this](const logging::record& r) {
                if (r.component == "rt" && r.severity == logging::level::warn)
                    seen.emplace_back(r.text);
            });
        }
        ~log_lines() { logging::set_sink(nullptr); }
    } lines;
    in_sim(17, 1, [&lines](sim_cluster& cluster) -> task<void> {
        auto c = co_await actor<counter>(1);
        {
            auto held = c.call<&counter::fail>("held");
            auto argument = remote<&twice>(c.call<&counter::fail>("an argument"));
            co_await sleep_for(100ms);
            auto seen = as_result(argument);
            (void)co_await std::move(seen);
        }
        {
            auto unwanted = remote<&later>(1, 60000);
            unwanted.cancel();
        }
        co_await sleep_for(100ms);
        CHECK(lines.seen.empty());
        c.call<&counter::fail>("nobody asked");
        co_await sleep_for(100ms);
        REQUIRE(lines.seen.size() == 1);
        CHECK(lines.seen[0].find("nobody asked") != std::string::npos);
        CHECK(lines.seen[0].find("rt_test::counter::fail") != std::string::npos);
        for (int i = 0; i < 1000; ++i) c.call<&counter::fail>("a flood");
        co_await sleep_for(100ms);
        CHECK(lines.seen.size() > 8);
        CHECK(lines.seen.size() < 20);
        cluster.kill(0);
    });
}

TEST_CASE("an exception of a method leaves the actor alive", "[rt][actor]") {
    in_sim(6, 1, [](sim_cluster&) -> task<void> {
        auto c = co_await actor<counter>(1);
        auto bad = as_result(c.call<&counter::fail>("why"));
        auto outcome = co_await std::move(bad);
        REQUIRE_FALSE(outcome);
        CHECK(outcome.error().code() == errc::remote_exception);
        {
            const auto got = co_await c.call<&counter::get>();
            CHECK(got == 1);
        }
    });
}

TEST_CASE("an exception of the constructor is the error of actor()", "[rt][actor]") {
    in_sim(7, 1, [](sim_cluster& c) -> task<void> {
        auto made = actor<picky>(-1);
        auto asked = as_result(std::move(made));
        auto outcome = co_await std::move(asked);
        REQUIRE_FALSE(outcome);
        CHECK(std::string(outcome.error().what()).find("std::domain_error: negative") !=
              std::string::npos);
        CHECK(std::string(outcome.error().what()).find("rt_test::picky(int)") != std::string::npos);
        CHECK(c.actors() == 0);
        auto fine = co_await actor<picky>(3);
        {
            const auto got = co_await fine.call<&picky::get>();
            CHECK(got == 3);
        }
    });
}

TEST_CASE("an actor ends with its last handle, after the calls it was given", "[M5][rt][actor]") {
    in_sim(8, 1, [](sim_cluster& c) -> task<void> {
        ref<int> slow, last;
        {
            auto h = co_await actor<counter>(0);
            slow = h.call<&counter::add_later>(1, 50);
            auto copy = h;
            last = copy.call<&counter::add>(5);
            CHECK(c.actors() == 1);
        }
        {
            const auto got = co_await last;
            CHECK(got == 5);
        }
        {
            const auto got = co_await slow;
            CHECK(got == 0);
        }
        co_await sleep_for(10ms);
        CHECK(c.actors() == 0);
    });
}

TEST_CASE("an actor that nobody waited for is dropped", "[rt][actor]") {
    in_sim(9, 1, [](sim_cluster& c) -> task<void> {
        { auto unwanted = actor<counter>(1); }
        co_await sleep_for(100ms);
        CHECK(c.actors() == 0);
    });
}

TEST_CASE("an actor whose maker goes away after it was made is dropped", "[rt][actor]") {
    in_sim(13, 1, [](sim_cluster& c) -> task<void> {
        {
            auto unwanted = actor<counter>(1);
            co_await sleep_for(100ms);
            CHECK(c.actors() == 1);
        }
        co_await sleep_for(100ms);
        CHECK(c.actors() == 0);
    });
}

namespace {
/// The worker where a new actor is put.
task<std::string> place_of_new_actor() {
    auto made = co_await actor<counter>(0);
    auto where = as_result(made.call<&counter::fail>("where"));
    auto told = co_await std::move(where);
    const std::string text = told.error().where();
    co_return text.substr(text.find("worker-"), 8);
}
} // namespace

TEST_CASE("an actor that is too large to send does not count as one of its worker", "[rt][actor]") {
    sim::loop loop(14);
    sim::network network(loop, sim::faults{});
    sim_cluster cluster(loop, network, 2);
    cluster.limit_frames(4096);
    loop.run(cluster.run([](sim_cluster&) -> task<void> {
        const auto before = co_await place_of_new_actor();
        co_await sleep_for(100ms);
        auto large = actor<row>(std::string(10000, 'x'), std::vector<float>());
        auto asked = as_result(std::move(large));
        auto outcome = co_await std::move(asked);
        REQUIRE_FALSE(outcome);
        CHECK(outcome.error().code() == errc::too_large);
        const auto after = co_await place_of_new_actor();
        CHECK(before == after);
    }));
}

TEST_CASE("actors spread over the workers", "[M1][rt][actor]") {
    in_sim(10, 3, [](sim_cluster&) -> task<void> {
        std::vector<actor_handle<counter>> handles;
        std::set<std::string> hosts;
        for (int i = 0; i < 3; ++i) handles.push_back(co_await actor<counter>(i));
        for (auto& h : handles) {
            auto asked = as_result(h.call<&counter::fail>("where"));
            auto outcome = co_await std::move(asked);
            const std::string text = outcome.error().where();
            hosts.insert(text.substr(text.find("worker-"), 8));
        }
        CHECK(hosts.size() == 3);
    });
}

TEST_CASE("a dead worker takes its actors along, and only those", "[F1][rt][actor]") {
    in_sim(11, 2, [](sim_cluster& c) -> task<void> {
        auto a = co_await actor<counter>(1);
        auto b = co_await actor<counter>(2);
        c.kill(0);
        c.kill(1);
        co_await sleep_for(100ms);
        auto asked = as_result(a.call<&counter::get>());
        auto gone = co_await std::move(asked);
        REQUIRE_FALSE(gone);
        CHECK(gone.error().code() == errc::worker_lost);
        CHECK(std::string(gone.error().what()).find("did not run") != std::string::npos);
        auto fresh = co_await actor<counter>(3);
        {
            const auto got = co_await fresh.call<&counter::get>();
            CHECK(got == 3);
        }
        c.kill(0);
        co_await sleep_for(100ms);
        auto other = co_await actor<counter>(4);
        {
            const auto got = co_await other.call<&counter::get>();
            CHECK(got == 4);
        }
    });
}

TEST_CASE("a handle inside an argument keeps the actor for that call", "[A7][rt][actor]") {
    in_sim(15, 1, [](sim_cluster& c) -> task<void> {
        ref<int> r;
        {
            std::vector<actor_handle<counter>> team;
            team.push_back(co_await actor<counter>(1));
            r = remote<&add_through_first>(team, 5);
        }
        {
            const auto got = co_await r;
            CHECK(got == 6);
        }
        co_await sleep_for(20ms);
        CHECK(c.actors() == 0);
    });
}

TEST_CASE("a handle given as an argument keeps the actor for that call", "[rt][actor]") {
    in_sim(12, 1, [](sim_cluster& c) -> task<void> {
        ref<int> r;
        {
            auto h = co_await actor<counter>(1);
            auto slow = remote<&later>(5, 50);
            r = remote<&add_through>(h, slow);
        }
        co_await sleep_for(20ms);
        CHECK(c.actors() == 1);
        {
            const auto got = co_await r;
            CHECK(got == 6);
        }
        co_await sleep_for(20ms);
        CHECK(c.actors() == 0);
    });
}
