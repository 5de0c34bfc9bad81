// SPDX-License-Identifier: Apache-2.0
#include <skein/cluster/head.hpp>
#include <skein/core/metric_registry.hpp>
#include <skein/rt/remote.hpp>
#include <tests/support/sim_jobs.hpp>
#include <tests/support/sim_nodes.hpp>

#include <stdexcept>
#include <string>
#include <vector>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

namespace head_counts_test {

using namespace skein;
using namespace std::chrono_literals;

int counted_twice(int x) {
    if (x < 0) throw std::runtime_error("less than nothing");
    return 2 * x;
}
task<int> counted_later(int ms) {
    co_await sleep_for(std::chrono::milliseconds(ms));
    co_return ms;
}

TEST_CASE("a head counts the calls that drivers have made, also of those that are gone",
          "[cluster][metrics]") {
    test::in_cluster(11, 2, [](test::sim_nodes& c, test::sim_nodes::driver& d) -> task<void> {
        for (int i = 0; i < 20; ++i) {
            auto good = remote<&counted_twice>(i);
            const int got = co_await good;
            CHECK(got == 2 * i);
        }
        for (int i = 1; i <= 3; ++i) {
            auto bad = as_result(as_task(remote<&counted_twice>(-i)));
            const auto outcome = co_await bad;
            CHECK_FALSE(outcome);
        }
        auto open = remote<&counted_later>(5000);
        co_await sleep_for(2s);
        const auto now = c.head().counts();
        CHECK(now.calls.submitted == d.self.stats().submitted);
        CHECK(now.calls.submitted == 24);
        CHECK(now.calls.done == 23);
        CHECK(now.calls.failed == 3);
        REQUIRE(now.by_program.size() == 1);
        CHECK(now.by_program.begin()->second.done == 23);
        CHECK(now.leases_granted >= 1);
        CHECK(now.node_links == 2);
        CHECK(now.driver_links == 1);
        const int late = co_await open;
        CHECK(late == 5000);

        auto second = c.make_driver("other");
        auto other = test::as_driver(second.get(), []() -> task<void> { // NOLINT: outlives the run
            auto more = remote<&counted_twice>(4);
            (void)co_await more;
        });
        co_await other;
        second.reset();
        co_await sleep_for(2s);
        const auto later = c.head().counts(); // what it did last came with its goodbye
        CHECK(later.calls.submitted == 25);
        CHECK(later.calls.done == 25);
        CHECK(later.calls.failed == 3);
        CHECK(later.by_program.size() == 1);
        CHECK(later.driver_links == 1);
    });
}

task<void> count_once() {
    auto call = remote<&counted_twice>(4);
    (void)co_await call;
}

/// As a program ends whose process was not run for a moment: it hears of both at once.
task<void> stop_and_cancel(test::sim_nodes::driver* d) {
    auto work = d->self.run_here(count_once());
    co_await work;
    d->workers.stop();
    d->services.cancel();
    auto goodbye = d->self.close();
    co_await goodbye;
    auto joined = as_result(d->services.join());
    (void)co_await joined;
}

TEST_CASE("a head counts the calls of a driver that is cancelled as soon as it is stopped",
          "[cluster][metrics]") {
    test::in_cluster(11, 2, [](test::sim_nodes& c, test::sim_nodes::driver&) -> task<void> {
        auto other = c.make_driver("other");
        auto driving = sim::run_on(other->home, stop_and_cancel(other.get()));
        co_await driving;
        other.reset();
        const auto now = c.head().counts();
        CHECK(now.calls.submitted == 1);
        CHECK(now.calls.done == 1);
        CHECK(now.driver_links == 0);
    });
}

/// From its hello on the head is not heard by it, for so long.
task<void> mute_head(test::sim_nodes* c, std::string host, duration most) {
    while (c->head().counts().driver_links == 0) co_await sleep_for(10us);
    c->network().block("head", host);
    co_await sleep_for(most);
    c->network().heal("head", host);
}

TEST_CASE("a head counts the calls of a driver that has ended before its welcome came",
          "[cluster][metrics]") {
    const bool comes = GENERATE(true, false);
    CAPTURE(comes);
    test::in_cluster(11, 2, [comes](test::sim_nodes& c, test::sim_nodes::driver&) -> task<void> {
        auto other = c.make_driver("other");
        scope beside;
        beside.spawn(mute_head(&c, other->host, comes ? duration(300ms) : duration(20s)));
        const auto begin = c.loop().now();
        auto driving = sim::run_on(other->home, stop_and_cancel(other.get()));
        co_await driving;
        if (comes) {
            CHECK(c.head().counts().calls.done == 1);
        } else { // it does not wait for one that is silent
            CHECK(c.loop().now() - begin < 15s);
        }
        auto healed = beside.join();
        co_await healed;
        other.reset();
    });
}

TEST_CASE("a head counts leases by state, and says what numbers agents have",
          "[cluster][metrics]") {
    test::sim_jobs jobs;
    metric_registry own;
    own.counter("skein_test_total", "Of the test.", {{"a", "x\ny"}}).add(5);
    own.gauge("skein_hosts", "It says who it is.", {{"node", "another"}}).set(1);
    for (int i = 0; i < 400; ++i) own.gauge("skein_z", "Many.", {{"i", std::to_string(i)}}).set(i);
    test::in_world_of_nodes(12, [&](test::sim_nodes& c) -> task<void> { // NOLINT: outlives the run
        c.start_head();
        jobs.attach(c);
        auto& n = jobs.add_node(1);
        auto there = jobs.until_nodes(1);
        co_await there;
        auto killed = c.kill_agent(n);
        co_await killed;
        auto how = c.agent_defaults();
        how.numbers = &own;
        c.start_agent(n, std::move(how));
        co_await sleep_for(8s);
        cluster::job_request what;
        what.command = {"/bin/sh", "sleep", "100000"};
        what.demand = "cpu=1";
        for (const char* id : {"runs", "waits", "waits-too"}) {
            what.id = id;
            auto submitting = jobs.submit(what);
            (void)co_await submitting;
        }
        co_await sleep_for(3s);
        const auto now = c.head().counts();
        CHECK(now.leases_granted == 1);
        CHECK(now.leases_waiting == 2);
        CHECK(now.leases_stopping == 0);
        CHECK(now.calls.submitted == 0);
        CHECK(now.by_program.empty()); // jobs are no programs
        const auto told = c.head().numbers();
        REQUIRE(told.contains("n1"));
        std::size_t series = 0;
        for (const auto& one : told.at("n1")) {
            series += one.series.size();
            CHECK(one.name != "skein_hosts"); // that is for the head to say
        }
        CHECK(series <= 256);
        CHECK(series > 200);
        const auto& first = told.at("n1").front();
        CHECK(first.name == "skein_test_total");
        CHECK(first.series.at(0).value == 5);
        CHECK(first.series.at(0).labels.at(0).value == "x\ny");
        for (const char* id : {"runs", "waits", "waits-too"}) {
            auto stopping = jobs.stop(id);
            (void)co_await stopping;
        }
    });
}

} // namespace head_counts_test
