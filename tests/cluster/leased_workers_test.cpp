// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch_test_macros.hpp>

#include <skein/rt/remote.hpp>
#include <tests/support/sim_nodes.hpp>

using namespace skein;
using namespace std::chrono_literals;

namespace {

int leased_twice(int x) { return 2 * x; }

/// What a call of a driver with these options gives, on a cluster of one node.
result<int> outcome_of(cluster::leased_workers_options how, bool has_head,
                       std::function<void(test::sim_nodes&)> before = {}) {
    sim::loop loop(1);
    sim::network network(loop, sim::faults{});
    test::sim_nodes c(loop, network);
    result<int> out(0);
    const auto all = [&]() -> task<void> {
        if (has_head) {
            c.start_head();
            c.add_node(1);
        }
        if (before) before(c);
        auto d = c.make_driver("driver", 0, std::move(how));
        const auto body = []() -> task<int> {
            auto r = remote<&leased_twice>(4);
            co_return co_await r;
        };
        auto asked = as_result(d->self.run_here(body()));
        out = co_await asked;
        auto ended = d->end();
        co_await ended;
        auto over = c.end();
        co_await over;
    };
    loop.run(all());
    CHECK(c.processes() == 0);
    CHECK(network.open_streams() == 0);
    return out;
}

} // namespace

TEST_CASE("without a head calls fail with its address and what to do",
          "[cluster][leased_workers]") {
    const auto got = outcome_of({}, false);
    REQUIRE_FALSE(got);
    CHECK(got.error().code() == errc::refused);
    const std::string text = got.error().what();
    INFO(text);
    CHECK(text.find("sim:head:1") != text.npos);
    CHECK(text.find("skein head") != text.npos);
}

TEST_CASE("a program that no node can start fails after a while", "[cluster][leased_workers]") {
    cluster::leased_workers_options how;
    how.start_within = 2s;
    const auto got = outcome_of(
        std::move(how), true, [](test::sim_nodes& c) { c.at(0).children->faults().not_found = 1; });
    REQUIRE_FALSE(got);
    CHECK(got.error().code() == errc::worker_lost);
    const std::string text = got.error().what();
    INFO(text);
    CHECK(text.find("did not start") != text.npos);
    CHECK(text.find("every node") != text.npos);
}

TEST_CASE("a demand that no node has waits, and says so", "[cluster][leased_workers]") {
    sim::loop loop(3);
    sim::network network(loop, sim::faults{});
    test::sim_nodes c(loop, network);
    const auto all = [&]() -> task<void> {
        c.start_head();
        c.add_node(1);
        cluster::leased_workers_options how;
        how.demand = rt::parse_resources("cpu=2").value();
        auto d = c.make_driver("driver", 1, std::move(how));
        const auto body = [](test::sim_nodes* of) -> task<int> {
            auto r = remote<&leased_twice>(4);
            co_await sleep_for(5s);
            const auto s = of->head().status();
            CHECK(s.jobs.at(0).waiting == 1);
            CHECK(s.jobs.at(0).why.find("cpu=2") != std::string::npos);
            of->add_node(2);
            co_return co_await r;
        };
        auto asked = d->self.run_here(body(&c));
        const int got = co_await asked;
        CHECK(got == 8);
        auto ended = d->end();
        co_await ended;
        auto over = c.end();
        co_await over;
    };
    loop.run(all());
}

TEST_CASE("a driver that has ended leaves its room to the next", "[cluster][leased_workers]") {
    sim::loop loop(4);
    sim::network network(loop, sim::faults{});
    test::sim_nodes c(loop, network);
    const auto all = [&]() -> task<void> {
        c.start_head();
        c.add_node(2);
        for (int i = 0; i < 5; ++i) {
            auto d = c.make_driver("driver", 0);
            const auto body = []() -> task<int> {
                auto r = remote<&leased_twice>(4);
                co_return co_await r;
            };
            auto asked = d->self.run_here(body());
            const int got = co_await asked;
            CHECK(got == 8);
            auto ended = d->end();
            co_await ended;
        }
        auto over = c.end();
        co_await over;
    };
    const auto begin = loop.now();
    loop.run(all());
    CHECK(loop.now() - begin < 3s);
}
