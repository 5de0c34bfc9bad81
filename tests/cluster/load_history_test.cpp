// SPDX-License-Identifier: Apache-2.0
#include <skein/cluster/load_history.hpp>
#include <skein/core/sleep.hpp>
#include <tests/support/sim_jobs.hpp>
#include <tests/support/sim_nodes.hpp>

#include <algorithm>
#include <limits>
#include <string>

#include <catch2/catch_test_macros.hpp>

namespace load_history_test {

using namespace skein;
using cluster::load_history;

constexpr std::int64_t start = 1'800'000'000; // begins a stretch of 15 s

proc::host_load busy(double cpu, double memory = 1000) {
    proc::host_load out;
    out.cpu = cpu;
    out.memory_used = memory;
    out.network_receive_rate = 10;
    return out;
}

/// So many seconds, of which each tenth is busy.
load_history filled(std::int64_t seconds) {
    load_history h;
    for (std::int64_t i = 0; i < seconds; ++i) h.add(busy(i % 10 == 0 ? 1 : 0), start + i);
    return h;
}

TEST_CASE("the last hour of a node is there by the second", "[cluster]") {
    const auto h = filled(5000);
    CHECK(h.last() == start + 4999);
    const auto all = h.since(start + 1399); // the first second that is kept is 1400
    REQUIRE(all.points.size() == 3600);
    CHECK(all.every_s == 1);
    CHECK(all.points.front().at == start + 1400);
    CHECK(all.points.front().cpu == 1);
    CHECK(all.points.back().at == start + 4999);
    CHECK(all.points.back().memory_used == 1000);
    CHECK(all.points.back().network_receive_rate == 10);
    CHECK(all.points.back().network_send_rate < 0); // nobody has said it
    const auto some = h.since(start + 4990);
    REQUIRE(some.points.size() == 9);
    CHECK(some.points.front().at == start + 4991);
    CHECK(h.since(start + 4999).points.empty());
    CHECK(h.since(start + 9999).points.empty());
}

TEST_CASE("the last day of a node is there by 15 seconds, and nothing of it twice", "[cluster]") {
    const std::int64_t day = 24 * 3600;
    const auto h = filled(day + 7205);
    CHECK(h.points() == load_history::most_seconds + load_history::most_stretches);
    const auto hours = h.since(start + 7205 + day - 4 * 3600);
    CHECK(hours.every_s == 15);
    CHECK(hours.points.size() == 4 * 240 + 1); // the stretch that is not over, too
    CHECK(std::all_of(hours.points.begin(), hours.points.end(), [](const auto& p) {
        return p.cpu > 0.06F && p.cpu < 0.21F; // one or two of 15
    }));
    // All of it is more than is given out: means of longer stretches, which say so.
    const auto all = h.since(0);
    CHECK(all.every_s == 30);
    CHECK(all.points.size() <= load_history::most_points);
    CHECK(all.points.size() > 2870);
    CHECK(all.points.back().at == start + day + 7204);
    CHECK(std::is_sorted(all.points.begin(), all.points.end(),
                         [](const auto& a, const auto& b) { return a.at < b.at; }));
}

TEST_CASE("fewer points than there are seconds are their means, of the same stretches each time",
          "[cluster]") {
    auto h = filled(600);
    const auto few = h.since(start - 1, 60);
    CHECK(few.every_s == 10);
    REQUIRE(few.points.size() == 60);
    for (const auto& p : few.points) CHECK(p.cpu == 0.1F); // no peak is lost, none is made
    h.add(busy(0), start + 600);
    const auto later = h.since(start - 1, 61);
    REQUIRE(later.points.size() == 61);
    CHECK(later.points[7].at == few.points[7].at);
    CHECK(h.since(start - 1, 1).points.size() == 1);
    CHECK(h.since(start - 1, 0).points.size() == 1);
    CHECK(filled(5).since(0, 1'000'000).points.size() == 5);
}

TEST_CASE("gaps stay gaps, and a clock that is set back leaves nothing out of order", "[cluster]") {
    load_history h;
    CHECK(h.since(0).points.empty());
    h.add(busy(0.5), start);
    h.add(busy(0.5), start);     // the same second
    h.add(busy(0.5), start - 9); // set back
    h.add(busy(0.25), start + 1000);
    const auto all = h.since(0);
    REQUIRE(all.points.size() == 2);
    CHECK(all.points[1].at == start + 1000);
    const auto thin = h.since(0, 1); // a mean over the gap says so: every_s is long
    REQUIRE(thin.points.size() == 1);
    CHECK(thin.every_s > 1000);
    h.add(busy(0.5), std::numeric_limits<std::int64_t>::max());
    CHECK(h.last() == start + 1000);
}

TEST_CASE("what a node says that cannot be is not known", "[cluster]") {
    load_history h;
    proc::host_load odd;
    odd.cpu = 17;
    odd.memory_used = std::numeric_limits<double>::quiet_NaN();
    odd.network_receive_rate = std::numeric_limits<double>::infinity();
    odd.disk_used = -5;
    h.add(odd, start);
    const auto p = h.since(0).points.at(0);
    CHECK(p.cpu == -1);
    CHECK(p.memory_used == -1);
    CHECK(p.network_receive_rate == -1);
    CHECK(p.disk_used == -1);
}

// ---- of a cluster --------------------------------------------------------------------------------

using namespace std::chrono_literals;

TEST_CASE("a head knows how busy its nodes are, and were, also of one that is gone", "[cluster]") {
    test::sim_jobs jobs;
    test::in_world_of_nodes(7, [&](test::sim_nodes& c) -> task<void> { // NOLINT: outlives the run
        c.start_head();
        jobs.attach(c);
        jobs.add_node(2);
        jobs.add_node(1);
        auto there = jobs.until_nodes(2);
        co_await there;
        cluster::job_request what;
        what.id = "one";
        what.command = {"/bin/sh", "sleep", "100000", "exit", "0"};
        what.demand = "cpu=1";
        what.label = "node=n1";
        auto submitting = jobs.submit(what);
        (void)co_await submitting;
        co_await sleep_for(20s);
        const auto busy = c.head().usage();
        REQUIRE(busy.size() == 2);
        CHECK(busy.at("n1").load.cpu == 0.5); // the model's: one process on two cores
        CHECK(busy.at("n2").load.cpu == 0);
        CHECK(busy.at("n1").load.memory_total == static_cast<double>(std::uint64_t{8} << 30));
        CHECK(busy.at("n1").is_there);
        const auto curve = c.head().usage_since("n1", 0);
        CHECK(curve.every_s == 1);
        CHECK(curve.points.size() >= 18);
        CHECK(curve.points.size() <= 22);
        CHECK(curve.points.back().cpu == 0.5F);
        CHECK(curve.points.back().network_receive_rate == 100);
        CHECK_THROWS(c.head().usage_since("n3", 0));

        const auto before = c.head().usage_changes();
        auto killed = c.kill_agent(c.at(1));
        co_await killed;
        co_await sleep_for(10s);
        const auto after = c.head().usage();
        CHECK_FALSE(after.at("n2").is_there);
        CHECK(after.at("n2").at < after.at("n1").at);
        CHECK(c.head().usage_changes() > before);
        CHECK(c.head().usage_since("n2", 0).points.size() >= 18);
        c.start_agent(c.at(1)); // the same name goes on where it was
        co_await sleep_for(10s);
        CHECK(c.head().usage().at("n2").is_there);
        CHECK(c.head().usage_since("n2", 0).points.size() >= 26);
        auto ended = jobs.stop("one");
        (void)co_await ended;
    });
}

TEST_CASE("an agent that is away says how busy it is when it is back, and nothing queues up",
          "[cluster]") {
    test::in_world_of_nodes(8, [&](test::sim_nodes& c) -> task<void> { // NOLINT: outlives the run
        c.start_head();
        c.add_node(2);
        co_await sleep_for(5s);
        CHECK(c.head().usage_since("n1", 0).points.size() >= 3);
        auto killed = c.kill_head();
        co_await killed;
        co_await sleep_for(20s);
        c.start_head();
        co_await sleep_for(10s);
        const auto known = c.head().usage_since("n1", 0).points;
        CHECK(known.size() >= 5);
        CHECK(known.size() <= 11); // those of the 20 seconds are not told
    });
}

} // namespace load_history_test
