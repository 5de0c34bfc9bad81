// SPDX-License-Identifier: Apache-2.0
// Placement groups of drivers on a cluster.
#include <catch2/catch_test_macros.hpp>

#include <skein/core/scope.hpp>
#include <skein/core/sleep.hpp>
#include <skein/core/timeout.hpp>
#include <skein/rt/placement_group.hpp>
#include <skein/rt/remote.hpp>
#include <skein/rt/runtime_context.hpp>
#include <tests/support/sim_nodes.hpp>

#include <set>
#include <utility>

using namespace skein;
using namespace std::chrono_literals;

namespace {

std::string bundle_host() { return runtime_context().host; }

/// Its making and its calls say where it lives.
struct bundle_resident {
    std::string host() { return runtime_context().host; }
};

/// On which hosts the bundles of a group are.
task<std::vector<std::string>> hosts_of(placement_group group) {
    std::vector<ref<std::string>> asked;
    for (std::size_t b = 0; b < group.size(); ++b)
        asked.push_back(remote<&bundle_host>.with({.on = group.bundle(b)})());
    std::vector<std::string> hosts;
    for (const auto& one : asked) {
        auto host = co_await one;
        hosts.push_back(std::move(host));
    }
    co_return hosts;
}

std::size_t different(const std::vector<std::string>& hosts) {
    return std::set<std::string>(hosts.begin(), hosts.end()).size();
}

task<int> bundle_work(int ms) {
    co_await sleep_for(std::chrono::milliseconds(ms));
    co_return ms;
}

/// Waits for one in the group of that name, and is in none itself.
task<int> bundle_asker(int ms, std::string name) {
    co_await sleep_for(std::chrono::milliseconds(ms));
    auto inner = remote<&bundle_work>.with({.on = group_named(name)})(ms);
    const int got = co_await inner;
    co_return got + 1;
}

/// More tasks than there are cpus, for as long as it is wanted.
task<void> keep_busy(const bool* over, int width) {
    std::vector<ref<int>> running;
    for (int i = 0; !*over; ++i) {
        running.push_back(remote<&bundle_work>(50 + 37 * (i % 11)));
        if (std::cmp_less(running.size(), width)) continue;
        auto oldest = std::move(running.front());
        running.erase(running.begin());
        (void)co_await oldest;
    }
    for (const auto& r : running) (void)co_await r;
}

} // namespace

TEST_CASE("bundles lie on nodes as the strategy of their group says",
          "[G1][G2][W9][cluster][head]") {
    test::in_cluster(31, 3, [](test::sim_nodes&, test::sim_nodes::driver&) -> task<void> {
        const std::vector<std::string> two(2, "cpu=1");
        using how = group_strategy;
        for (const auto strategy : {how::pack, how::strict_pack, how::spread, how::strict_spread}) {
            placement_group group(two, strategy);
            co_await group.ready();
            CHECK(group.is_placed());
            auto asked = hosts_of(group);
            const auto hosts = co_await asked;
            const bool is_apart = strategy == how::spread || strategy == how::strict_spread;
            CHECK(different(hosts) == (is_apart ? 2 : 1));
            co_await group.remove();
            co_await sleep_for(2s); // all nodes have room again
        }
        // All there is, in bundles that no node could hold together.
        placement_group all(std::vector<std::string>(3, "cpu=2"), how::pack);
        co_await all.ready();
        auto asked = hosts_of(all);
        const auto hosts = co_await asked;
        CHECK(different(hosts) == 3);
    });
}

TEST_CASE("a group that no nodes can hold waits until they come", "[G2][cluster][head]") {
    test::in_cluster(32, 1, [](test::sim_nodes& c, test::sim_nodes::driver&) -> task<void> {
        placement_group group({"cpu=1", "cpu=1"}, group_strategy::strict_spread);
        auto inside = remote<&bundle_host>.with({.on = group.bundle(1)})();
        co_await sleep_for(5s);
        CHECK_FALSE(group.is_placed());
        CHECK_FALSE(inside.ready());
        CHECK(c.head().status().jobs.at(0).why.find("placement group 1") != std::string::npos);
        c.add_node(1);
        co_await group.ready();
        const auto host = co_await inside;
        CHECK_FALSE(host.empty());
    });
}

TEST_CASE("the bundles of a lost node get other places, and actors in them are made again",
          "[G5][cluster][head]") {
    test::in_cluster(33, 3, [](test::sim_nodes& c, test::sim_nodes::driver&) -> task<void> {
        placement_group group({"cpu=1", "cpu=1"}, group_strategy::strict_spread);
        co_await group.ready();
        auto a = co_await actor<bundle_resident>.with(
            {.cpus = 1, .on = group.bundle(0), .restarts = 1})();
        auto first = a.call<&bundle_resident::host>();
        const auto before = co_await first;
        for (std::size_t n = 0; n < c.nodes(); ++n) {
            if (c.at(n).host != before) continue;
            auto killed = c.kill_agent(c.at(n));
            co_await killed;
        }
        co_await sleep_for(1s); // a call of before it is known may have run, and says so
        auto again = a.call<&bundle_resident::host>();
        const auto after = co_await again;
        CHECK(after != before);
        co_await group.ready();
        auto other = remote<&bundle_host>.with({.on = group.bundle(1)})();
        const auto beside = co_await other;
        CHECK(beside != after);
        CHECK(beside != before);
    });
}

TEST_CASE("a head that is started again knows the groups and what lives in them",
          "[G5][cluster][head]") {
    test::in_cluster(34, 2, [](test::sim_nodes& c, test::sim_nodes::driver&) -> task<void> {
        placement_group group({"cpu=2", "cpu=1"}, group_strategy::strict_spread);
        co_await group.ready();
        auto a = co_await actor<bundle_resident>.with({.cpus = 1, .on = group.bundle(1)})();
        auto first = a.call<&bundle_resident::host>();
        const auto before = co_await first;
        auto killed = c.kill_head();
        co_await killed;
        co_await sleep_for(1s);
        c.start_head();
        co_await sleep_for(20s);
        CHECK(group.is_placed());
        auto again = a.call<&bundle_resident::host>(); // it is the same one: it has no restarts
        const auto after = co_await again;
        CHECK(after == before);
        auto inside = remote<&bundle_host>.with({.cpus = 2, .on = group.bundle(0)})();
        const auto other = co_await inside;
        CHECK(other != before);
        // Another one that needs the room of its bundles waits for its end.
        placement_group next({"cpu=2"});
        co_await sleep_for(5s);
        CHECK_FALSE(next.is_placed());
        group = {};
        a = {};
        co_await next.ready();
    });
}

TEST_CASE("a group gets its room one worker after another, whatever else programs want",
          "[G2][cluster][head]") {
    const auto body = [](test::sim_nodes& c, test::sim_nodes::driver&) -> task<void> {
        bool over = false;
        scope tasks;
        const auto other = c.make_driver("other", 12);
        const auto work = [&over] { return keep_busy(&over, 30); };
        tasks.spawn(test::as_driver(other.get(), work));
        tasks.spawn(keep_busy(&over, 30));
        co_await sleep_for(10s);
        for (int round = 0; round < 5; ++round) {
            placement_group group({"cpu=1", "cpu=1", "cpu=1"}, group_strategy::spread);
            auto placed = as_result(with_timeout(group.ready(), 30s));
            const auto ok = co_await placed;
            CHECK(ok);
            if (!ok) break;
            auto inside = remote<&bundle_host>.with({.on = group.bundle(2)})();
            (void)co_await inside;
        }
        over = true;
        co_await tasks.join();
    };
    test::in_cluster(35, 3, body, 2, 12);
}

TEST_CASE("a task that waits for one in a group leaves the group its cpu",
          "[W7][G9][cluster][head]") {
    test::in_cluster(
        39, 1,
        [](test::sim_nodes& c, test::sim_nodes::driver& d) -> task<void> {
            auto outer = remote<&bundle_asker>(1000, "late");
            co_await sleep_for(500ms); // it has the only cpu
            placement_group group({"cpu=1"}, {.name = "late"});
            auto asked = as_result(with_timeout(as_task(outer), 60s));
            const auto got = co_await asked;
            REQUIRE(got);
            CHECK(*got == 1001);
            group = {};
            auto after = remote<&bundle_work>(1);
            const int more = co_await after;
            CHECK(more == 1);
            co_await sleep_for(1s);
            CHECK(d.workers.connected() == 1);
            CHECK(c.head().status().nodes.at(0).used == "cpu=1");
        },
        1);
}

TEST_CASE("bundles that are empty leave a node that is drained, those in use when they are not",
          "[G6][cluster][head]") {
    test::in_cluster(36, 3, [](test::sim_nodes& c, test::sim_nodes::driver&) -> task<void> {
        placement_group group({"cpu=1", "cpu=1"}, group_strategy::strict_spread);
        co_await group.ready();
        auto asked = hosts_of(group);
        const auto before = co_await asked;
        auto draining = test::drain(&c, before.at(0), true);
        co_await draining;
        co_await sleep_for(3s);
        auto again = hosts_of(group);
        const auto after = co_await again;
        CHECK(after.at(0) != before.at(0));
        CHECK(after.at(1) == before.at(1));
        // An actor holds the next one where it is, until it ends; what is new waits for that.
        auto making = actor<bundle_resident>.with({.cpus = 1, .on = group.bundle(1)})();
        auto a = co_await making;
        auto undo = test::drain(&c, before.at(0), false);
        co_await undo;
        auto second = test::drain(&c, before.at(1), true);
        co_await second;
        auto inside = remote<&bundle_host>.with({.on = group.bundle(1)})();
        co_await sleep_for(60s);
        CHECK_FALSE(inside.ready());
        auto call = a.call<&bundle_resident::host>();
        const auto home = co_await call;
        CHECK(home == before.at(1));
        a = {};
        const auto moved = co_await inside;
        CHECK(moved == before.at(0));
    });
}

TEST_CASE("bundles of a group that must be on one node leave a drained one together",
          "[G6][cluster][head]") {
    test::in_cluster(37, 2, [](test::sim_nodes& c, test::sim_nodes::driver&) -> task<void> {
        placement_group group({"cpu=1", "cpu=1"}, group_strategy::strict_pack);
        co_await group.ready();
        auto making = actor<bundle_resident>.with({.cpus = 1, .on = group.bundle(0)})();
        auto a = co_await making;
        auto call = a.call<&bundle_resident::host>();
        const auto before = co_await call;
        auto draining = test::drain(&c, before, true);
        co_await draining;
        co_await sleep_for(60s);
        CHECK(group.is_placed()); // both are where the actor is
        auto still = a.call<&bundle_resident::host>();
        const auto home = co_await still;
        CHECK(home == before);
        a = {};
        auto asked = hosts_of(group);
        const auto after = co_await asked;
        CHECK(different(after) == 1);
        CHECK(after.at(0) != before);
    });
}

TEST_CASE("a head that is started again knows which nodes are drained", "[cluster][head]") {
    test::in_cluster(38, 2, [](test::sim_nodes& c, test::sim_nodes::driver&) -> task<void> {
        auto draining = test::drain(&c, "n1", true);
        co_await draining;
        auto killed = c.kill_head();
        co_await killed;
        c.start_head();
        co_await sleep_for(20s);
        for (const auto& n : c.head().status().nodes) CHECK(n.draining == (n.name == "n1"));
        auto undo = test::drain(&c, "n1", false);
        co_await undo;
        auto again = c.kill_head();
        co_await again;
        c.start_head();
        co_await sleep_for(20s);
        for (const auto& n : c.head().status().nodes) CHECK_FALSE(n.draining);
    });
}
