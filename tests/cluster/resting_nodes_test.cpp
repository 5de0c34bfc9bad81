// SPDX-License-Identifier: Apache-2.0
// Nodes that cannot start anything, and jobs that wait for each other.
#include <catch2/catch_test_macros.hpp>

#include <skein/cluster/detail/node_rest.hpp>
#include <skein/cluster/jobs.hpp>
#include <skein/rt/remote.hpp>
#include <tests/support/log_lines.hpp>
#include <tests/support/sim_jobs.hpp>
#include <tests/support/sim_nodes.hpp>

#include <catch2/matchers/catch_matchers_string.hpp>

#include <functional>
#include <string>
#include <vector>

using namespace skein;
using namespace std::chrono_literals;
using Catch::Matchers::ContainsSubstring;
using cluster::job_state;
using cluster::detail::node_rest;

namespace {

int resting_twice(int x) { return 2 * x; }

/// A head with so many nodes of so many cpus each.
void with_nodes(std::uint64_t seed, int nodes, int cpus,
                const std::function<task<void>(test::sim_nodes&, test::sim_jobs&)>& body) {
    test::sim_jobs jobs;
    test::in_world_of_nodes(seed,
                            [&](test::sim_nodes& c) -> task<void> { // NOLINT: outlives the run
                                c.start_head();
                                jobs.attach(c);
                                for (int i = 0; i < nodes; ++i) jobs.add_node(cpus);
                                auto there = jobs.until_nodes(static_cast<std::size_t>(nodes));
                                co_await there;
                                auto rest = body(c, jobs);
                                co_await rest;
                            });
}

cluster::job_request job_of(std::string id, std::vector<std::string> does, std::string demand) {
    cluster::job_request what;
    what.id = std::move(id);
    what.command = {"/bin/sh"};
    what.command.insert(what.command.end(), does.begin(), does.end());
    what.demand = std::move(demand);
    what.by = "ann@desk";
    return what;
}

cluster::node_status node_called(test::sim_nodes& c, const std::string& name) {
    for (auto& n : c.head().status().nodes)
        if (n.name == name) return n;
    return {};
}

task<void> twice_of(int x, int* into) {
    auto r = remote<&resting_twice>(x);
    *into = co_await r;
}

/// A driver that came out of a job.
std::unique_ptr<test::sim_nodes::driver> driver_of(test::sim_nodes& c, const std::string& job) {
    cluster::leased_workers_options how;
    how.job = job;
    return c.make_driver("app-" + job, 0, std::move(how));
}

} // namespace

TEST_CASE("a node rests twice as long each time, up to a minute, until something starts",
          "[cluster][resting]") {
    node_rest rest;
    time_point now{};
    now += 10s;
    for (const auto length : {1s, 2s, 4s, 8s, 16s, 32s, 60s, 60s}) {
        CHECK(rest.failed(now, "full"));
        CHECK_FALSE(rest.failed(now, "full")); // ordered at the same time
        CHECK(rest.left(now) == length);
        CHECK_FALSE(rest.is_over(now + length - 1ns));
        now += length;
        CHECK(rest.is_over(now));
        CHECK_FALSE(rest.is_over(now)); // said once
        CHECK_FALSE(rest.is_on());
    }
    CHECK(rest.failed(now, "full"));
    CHECK(rest.worked());
    CHECK_FALSE(rest.worked());
    CHECK(rest.failed(now, "full again"));
    CHECK(rest.left(now) == 1s);
    CHECK(rest.why() == "full again");
    now += 1s;
    CHECK(rest.is_over(now));
    now += 61s; // whatever has started since, nobody has told of it
    CHECK(rest.failed(now, "full"));
    CHECK(rest.left(now) == 1s);
}

TEST_CASE("what a node cannot start for a reason of its own goes to another one, and is no attempt",
          "[cluster][resting]") {
    with_nodes(1, 2, 4, [](test::sim_nodes& c, test::sim_jobs& jobs) -> task<void> {
        auto probing = jobs.run(job_of("probe", {"exit", "0"}, "cpu=1"));
        const auto probed = co_await probing;
        const auto broken = probed.end.node; // it is asked first
        c.at(broken == "n1" ? 0 : 1).children->faults().no_descriptors = 1;
        const std::string good = broken == "n1" ? "n2" : "n1";
        for (int i = 0; i < 20; ++i) {
            auto running = jobs.run(job_of(fmt::format("j{}", i), {"exit", "0"}, "cpu=1"));
            const auto said = co_await running;
            CHECK(said.end.state == static_cast<std::uint8_t>(job_state::succeeded));
            CHECK(said.end.attempt == 1); // there are no retries
            CHECK(said.end.node == good);
        }
        CHECK(node_called(c, broken).rests_ms > 0);
        CHECK_THAT(node_called(c, broken).rests_for, ContainsSubstring("too many open files"));
        CHECK(node_called(c, good).rests_ms == 0);
    });
}

TEST_CASE("a job that no node can start waits and says why, and runs when one can",
          "[cluster][resting]") {
    with_nodes(2, 1, 4, [](test::sim_nodes& c, test::sim_jobs& jobs) -> task<void> {
        c.at(0).children->faults().no_descriptors = 1;
        auto submitting = jobs.submit(job_of("patient", {"exit", "0"}, "cpu=1"));
        (void)co_await submitting;
        auto impatient = job_of("impatient", {"exit", "0"}, "cpu=1");
        impatient.pending_ms = 60'000;
        impatient.retries = 3;
        const auto begin = c.loop().now();
        auto failing = jobs.run(std::move(impatient));
        const auto failed = co_await failing;
        CHECK(failed.end.state == static_cast<std::uint8_t>(job_state::failed));
        CHECK_THAT(failed.end.reason, ContainsSubstring("within 60 s") && ContainsSubstring("n1") &&
                                          ContainsSubstring("too many open files"));
        CHECK(c.loop().now() - begin < 62s);
        auto asking = jobs.info("patient");
        const auto waits = co_await asking;
        CHECK(waits.state == static_cast<std::uint8_t>(job_state::pending));
        CHECK(waits.attempt == 1);
        CHECK_THAT(waits.reason,
                   ContainsSubstring("n1") && ContainsSubstring("too many open files"));
        CHECK(jobs.starts_of("patient").empty());
        c.at(0).children->faults().no_descriptors = 0;
        auto following = jobs.follow("patient");
        const auto said = co_await following;
        CHECK(said.end.state == static_cast<std::uint8_t>(job_state::succeeded));
        CHECK(said.end.attempt == 1);
        CHECK(jobs.starts_of("patient") == std::vector<int>{1});
        CHECK(node_called(c, "n1").rests_ms == 0);
    });
}

TEST_CASE("what the job itself lacks is its own failure: no node rests for it",
          "[cluster][resting]") {
    with_nodes(3, 1, 4, [](test::sim_nodes& c, test::sim_jobs& jobs) -> task<void> {
        auto what = job_of("none", {}, "cpu=1");
        what.command = {"no-such-command-anywhere"};
        what.retries = 3;
        auto running = jobs.run(std::move(what));
        const auto said = co_await running;
        CHECK(said.end.state == static_cast<std::uint8_t>(job_state::failed));
        CHECK(said.end.attempt == 1);
        CHECK(node_called(c, "n1").rests_ms == 0);
    });
}

TEST_CASE("a job that waits for a node which can start it may be stopped", "[cluster][resting]") {
    with_nodes(4, 1, 1, [](test::sim_nodes& c, test::sim_jobs& jobs) -> task<void> {
        c.at(0).children->faults().no_descriptors = 1;
        auto submitting = jobs.submit(job_of("j", {"exit", "0"}, "cpu=1"));
        (void)co_await submitting;
        co_await sleep_for(20s); // it waits by itself by now, and has no lease
        auto stopping = jobs.stop("j");
        (void)co_await stopping;
        auto following = jobs.follow("j");
        const auto said = co_await following;
        CHECK(said.end.state == static_cast<std::uint8_t>(job_state::stopped));
    });
}

TEST_CASE("calls go to another node when one cannot start their workers", "[cluster][resting]") {
    const test::log_lines lines("cluster");
    with_nodes(5, 2, 1, [](test::sim_nodes& c, test::sim_jobs&) -> task<void> {
        c.at(0).children->faults().no_descriptors = 1;
        const auto d = c.make_driver("driver");
        int got = 0;
        auto driving = test::as_driver(d.get(), [&] { return twice_of(21, &got); });
        co_await driving;
        CHECK(got == 42);
    });
}

// ---- jobs that wait for each other --------------------------------------------------------------

TEST_CASE("jobs whose entry processes have all cpus are done: these are lent to their tasks",
          "[cluster][resting]") {
    with_nodes(10, 1, 2, [](test::sim_nodes& c, test::sim_jobs& jobs) -> task<void> {
        std::vector<std::unique_ptr<test::sim_nodes::driver>> drivers;
        for (const std::string id : {"a", "b"}) {
            auto submitting = jobs.submit(job_of(id, {"sleep", "60000", "exit", "0"}, "cpu=1"));
            (void)co_await submitting;
            auto runs = jobs.until(id, job_state::running);
            (void)co_await runs;
            drivers.push_back(driver_of(c, id));
        }
        std::vector<int> got(2);
        scope both;
        const auto begin = c.loop().now();
        for (std::size_t i = 0; i < 2; ++i) {
            auto* const d = drivers[i].get();
            auto* const into = &got[i];
            both.spawn(test::as_driver(d, [into] { return twice_of(21, into); }));
        }
        auto done = both.join();
        co_await done;
        CHECK(got == std::vector<int>{42, 42});
        CHECK(c.loop().now() - begin < 30s); // the entry processes run on
        for (const std::string id : {"a", "b"}) {
            auto asking = jobs.info(id);
            const auto now = co_await asking;
            CHECK(now.state == static_cast<std::uint8_t>(job_state::running));
        }
    });
}

TEST_CASE("cpus that are lent to tasks start no other job, and come back when the driver leaves",
          "[cluster][resting]") {
    with_nodes(11, 1, 1, [](test::sim_nodes& c, test::sim_jobs& jobs) -> task<void> {
        auto first = jobs.submit(job_of("first", {"sleep", "60000", "exit", "0"}, "cpu=1"));
        (void)co_await first;
        auto runs = jobs.until("first", job_state::running);
        (void)co_await runs;
        auto second = jobs.submit(job_of("second", {"exit", "0"}, "cpu=1"));
        (void)co_await second;
        const auto d = driver_of(c, "first");
        int got = 0;
        auto driving = test::as_driver(d.get(), [&] { return twice_of(21, &got); });
        co_await driving;
        CHECK(got == 42);
        co_await sleep_for(1s);
        CHECK(node_called(c, "n1").used == "cpu=1"); // the entry process has it again
        auto asking = jobs.info("second");
        const auto waits = co_await asking;
        CHECK(waits.state == static_cast<std::uint8_t>(job_state::pending));
        auto following = jobs.follow("second");
        const auto said = co_await following;
        CHECK(said.end.state == static_cast<std::uint8_t>(job_state::succeeded));
    });
}

TEST_CASE("a driver that waits for long says for what, and who has it; so does its job's status",
          "[cluster][resting]") {
    const test::log_lines lines("cluster");
    with_nodes(12, 1, 1, [&](test::sim_nodes& c, test::sim_jobs& jobs) -> task<void> { // NOLINT
        auto all = jobs.submit(job_of("busy", {"sleep", "30000", "exit", "0"}, "cpu=1"));
        (void)co_await all;
        auto runs = jobs.until("busy", job_state::running);
        (void)co_await runs;
        auto other = jobs.submit(job_of("waits", {"sleep", "60000", "exit", "0"}, ""));
        (void)co_await other;
        auto also = jobs.until("waits", job_state::running);
        (void)co_await also;
        const auto d = driver_of(c, "waits");
        int got = 0;
        scope driving;
        driving.spawn(test::as_driver(d.get(), [&] { return twice_of(21, &got); }));
        co_await sleep_for(8s);
        auto asking = jobs.info("waits");
        const auto now = co_await asking;
        CHECK(now.state == static_cast<std::uint8_t>(job_state::running));
        CHECK_THAT(now.reason, ContainsSubstring("waits for cpu=1 for ") &&
                                   ContainsSubstring("n1: cpu 1 of 1 held by job busy (entry)"));
        CHECK(lines.count("calls wait for room that others have") == 1);
        auto done = driving.join();
        co_await done; // "busy" ends
        CHECK(got == 42);
        auto again = jobs.info("waits");
        const auto then = co_await again;
        CHECK(then.reason.empty());
    });
}

TEST_CASE("a job and what came out of it are one row, on its node and with its process",
          "[cluster][resting]") {
    with_nodes(13, 1, 2, [](test::sim_nodes& c, test::sim_jobs& jobs) -> task<void> {
        auto submitting = jobs.submit(job_of("wide", {"sleep", "20000", "exit", "0"}, "cpu=1"));
        (void)co_await submitting;
        auto runs = jobs.until("wide", job_state::running);
        (void)co_await runs;
        const auto d = driver_of(c, "wide");
        const auto body = [&c]() -> task<void> { // NOLINT: outlives the run
            auto r = remote<&resting_twice>(21);
            (void)co_await r;
            const auto now = c.head().status();
            CHECK(now.jobs.size() == 1);
            if (now.jobs.size() != 1) co_return;
            const auto& one = now.jobs.front();
            CHECK(one.name == "job wide");
            CHECK(one.job == "wide");
            CHECK(one.state == "running");
            CHECK(one.host == "n1");
            CHECK(one.pid != 0);
            CHECK(one.connected);
            CHECK(one.program == "app-wide");
            CHECK(one.workers >= 1);
        };
        auto driving = test::as_driver(d.get(), body);
        co_await driving;
        auto ended = jobs.until("wide", job_state::succeeded);
        (void)co_await ended;
        CHECK(c.head().status().jobs.empty());
    });
}
