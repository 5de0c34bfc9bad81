// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch_test_macros.hpp>

#include <skein/rt/remote.hpp>
#include <skein/rt/runtime_context.hpp>
#include <tests/support/sim_nodes.hpp>

using namespace skein;
using namespace std::chrono_literals;

namespace {

int leased_twice(int x) { return 2 * x; }

task<void> call_once(result<int>* out) {
    auto asked = as_result(as_task(remote<&leased_twice>(4)));
    *out = co_await asked;
}

/// What a call of a driver with these options gives, on a cluster of one node.
result<int> outcome_of(cluster::leased_workers_options how, bool has_head,
                       std::function<void(test::sim_nodes&)> before = {}) {
    result<int> out(0);
    test::in_world_of_nodes(1, [&](test::sim_nodes& c) -> task<void> { // NOLINT: outlives the run
        if (has_head) {
            c.start_head();
            c.add_node(1);
        }
        if (before) before(c);
        const auto d = c.make_driver("driver", 0, std::move(how));
        auto driving = test::as_driver(d.get(), [&out] { return call_once(&out); });
        co_await driving;
    });
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
    test::in_world_of_nodes(3, [](test::sim_nodes& c) -> task<void> {
        c.start_head();
        c.add_node(1);
        cluster::leased_workers_options how;
        how.demand = rt::parse_resources("cpu=2").value();
        const auto d = c.make_driver("driver", 1, std::move(how));
        const auto body = [](test::sim_nodes* of) -> task<void> {
            auto r = remote<&leased_twice>(4);
            co_await sleep_for(5s);
            const auto s = of->head().status();
            CHECK(s.jobs.at(0).waiting == 1);
            CHECK(s.jobs.at(0).why.find("cpu=2") != std::string::npos);
            of->add_node(2);
            const int got = co_await r;
            CHECK(got == 8);
        };
        auto driving = test::as_driver(d.get(), [&] { return body(&c); });
        co_await driving;
    });
}

TEST_CASE("a driver that has ended leaves its room to the next", "[cluster][leased_workers]") {
    test::in_world_of_nodes(4, [](test::sim_nodes& c) -> task<void> {
        c.start_head();
        c.add_node(2);
        const auto begin = c.loop().now();
        for (int i = 0; i < 5; ++i) {
            const auto d = c.make_driver("driver", 0);
            result<int> got(0);
            auto driving = test::as_driver(d.get(), [&got] { return call_once(&got); });
            co_await driving;
            CHECK(got.value() == 8);
        }
        CHECK(c.loop().now() - begin < 3s);
    });
}

namespace {

std::string lease_host() { return runtime_context().host; }
task<std::string> lease_stay(int ms) {
    co_await sleep_for(std::chrono::milliseconds(ms));
    co_return lease_host();
}

/// On two nodes with one cpu, n1 and (with a gpu, in zone b) n2.
task<void> ask_for_more(test::sim_nodes* of) {
    auto plain = remote<&lease_host>();
    (void)co_await plain;
    co_await sleep_for(1s); // all cpus are this driver's
    auto gpu = remote<&lease_host>.with({.gpus = 1})();
    const auto with_gpu = co_await gpu;
    CHECK(with_gpu == "n2");
    auto ssd = remote<&lease_host>.with({.cpus = 0, .resources = "ssd=1"})();
    const auto with_ssd = co_await ssd;
    CHECK(with_ssd == "n2");
    for (int i = 0; i < 4; ++i) {
        auto there = remote<&lease_stay>.with({.on = label("zone=b")})(10);
        const auto by_label = co_await there;
        CHECK(by_label == "n2");
        auto named = remote<&lease_stay>.with({.on = node_named("n1")})(10);
        const auto by_name = co_await named;
        CHECK(by_name == "n1");
    }
    // When nothing waits for them any more the cpus are everybody's again.
    co_await sleep_for(3s);
    for (const auto& n : of->head().status().nodes) CHECK(n.used == "cpu=1");
    CHECK(of->processes() == 2);
}

} // namespace

TEST_CASE("tasks go to nodes that have what they ask for, by label and by name",
          "[cluster][leased_workers]") {
    test::in_world_of_nodes(5, [](test::sim_nodes& c) -> task<void> {
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
        auto driving = test::as_driver(d.get(), [&c] { return ask_for_more(&c); });
        co_await driving;
    });
}

TEST_CASE("a demand that no node can hold waits until one comes", "[cluster][leased_workers]") {
    test::in_cluster(6, 1, [](test::sim_nodes& c, test::sim_nodes::driver&) -> task<void> {
        auto r = remote<&lease_host>.with({.gpus = 1})();
        co_await sleep_for(5s);
        CHECK_FALSE(r.ready());
        CHECK(c.head().status().jobs.at(0).why.find("gpu=1") != std::string::npos);
        c.agent_offers.gpu = 1;
        c.add_node(1);
        const auto got = co_await r;
        CHECK(got == "n2");
    });
}
