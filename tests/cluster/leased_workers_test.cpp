// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch_test_macros.hpp>

#include <skein/rt/remote.hpp>
#include <skein/rt/runtime_context.hpp>
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
    // NOLINTNEXTLINE(cppcoreguidelines-avoid-capturing-lambda-coroutines): it outlives the run
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
    // NOLINTNEXTLINE(cppcoreguidelines-avoid-capturing-lambda-coroutines): it outlives the run
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
    // NOLINTNEXTLINE(cppcoreguidelines-avoid-capturing-lambda-coroutines): it outlives the run
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

namespace {

struct lease_seen {
    std::string host, process;
};
lease_seen lease_look() {
    const auto here = runtime_context();
    return {here.host, here.process};
}
task<lease_seen> lease_stay(int ms) {
    co_await sleep_for(std::chrono::milliseconds(ms));
    co_return lease_look();
}

} // namespace

TEST_CASE("tasks go to nodes that have what they ask for, by label and by name",
          "[cluster][leased_workers]") {
    sim::loop loop(5);
    sim::network network(loop, sim::faults{});
    test::sim_nodes c(loop, network);
    // NOLINTNEXTLINE(cppcoreguidelines-avoid-capturing-lambda-coroutines): it outlives the run
    const auto all = [&]() -> task<void> {
        c.start_head();
        c.add_node(1);
        auto& second = c.add_node(1);
        auto gone = c.kill_agent(second);
        co_await gone;
        auto how = c.agent_defaults();
        how.name = "big";
        how.offers = rt::parse_resources("gpu=1,ssd=2").value();
        how.labels = {"zone=b"};
        c.start_agent(second, std::move(how));
        co_await sleep_for(10s); // the first agent there is forgotten
        const auto d = c.make_driver("driver", 0);
        const auto body = [](test::sim_nodes* of) -> task<void> {
            auto plain = remote<&lease_look>();
            (void)co_await plain;
            co_await sleep_for(1s); // all cpus are this driver's
            auto gpu = remote<&lease_look>.with({.gpus = 1})();
            const auto with_gpu = co_await gpu;
            CHECK(with_gpu.host == "n2");
            auto ssd = remote<&lease_look>.with({.cpus = 0, .resources = "ssd=1"})();
            const auto with_ssd = co_await ssd;
            CHECK(with_ssd.host == "n2");
            for (int i = 0; i < 4; ++i) {
                auto there = remote<&lease_stay>.with({.on = label("zone=b")})(10);
                const auto by_label = co_await there;
                CHECK(by_label.host == "n2");
                auto named = remote<&lease_stay>.with({.on = node_named("n1")})(10);
                const auto by_name = co_await named;
                CHECK(by_name.host == "n1");
            }
            // When nothing waits for them any more the cpus are everybody's again.
            co_await sleep_for(3s);
            const auto now = of->head().status();
            for (const auto& n : now.nodes) CHECK(n.used == "cpu=1");
            CHECK(of->processes() == 2);
        };
        auto asked = d->self.run_here(body(&c));
        co_await asked;
        auto ended = d->end();
        co_await ended;
        auto over = c.end();
        co_await over;
    };
    loop.run(all());
    CHECK(c.processes() == 0);
    CHECK(network.open_streams() == 0);
}

TEST_CASE("a demand that no node can hold waits until one comes", "[cluster][leased_workers]") {
    test::in_cluster(6, 1, [](test::sim_nodes& c, test::sim_nodes::driver&) -> task<void> {
        auto r = remote<&lease_look>.with({.gpus = 1})();
        co_await sleep_for(5s);
        CHECK_FALSE(r.ready());
        CHECK(c.head().status().jobs.at(0).why.find("gpu=1") != std::string::npos);
        c.agent_offers.gpu = 1;
        c.add_node(1);
        const auto got = co_await r;
        CHECK(got.host == "n2");
    });
}
