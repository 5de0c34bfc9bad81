// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch_test_macros.hpp>

#include <skein/cluster/detail/cluster_link.hpp>
#include <skein/sim/disk.hpp>
#include <tests/support/cluster_peer.hpp>
#include <tests/support/sim_nodes.hpp>

#include <skein/core/timeout.hpp>
#include <skein/rt/remote.hpp>

#include <catch2/catch_test_macros.hpp>

#include <set>

using namespace skein;
using namespace std::chrono_literals;

namespace {

using driver_of = test::sim_nodes::driver;

int head_twice(int x) { return 2 * x; }
task<int> head_later(int x, int ms) {
    co_await sleep_for(std::chrono::milliseconds(ms));
    co_return x;
}
/// Waits for one that needs the cpus which it has itself.
task<int> head_outer(int ms) {
    auto inner = remote<&head_later>.with({.cpus = 2})(ms, ms);
    const int got = co_await inner;
    co_return got + 1;
}
/// The same, and goes on for long.
task<int> head_goes_on(int ms) {
    auto inner = remote<&head_later>.with({.cpus = 2})(ms, ms);
    const int got = co_await inner;
    co_await sleep_for(30s);
    co_return got;
}
/// Waits for the next one, down to the last.
task<int> head_deep(int depth) {
    co_await sleep_for(1s);
    if (depth == 0) co_return 0;
    auto inner = remote<&head_deep>(depth - 1);
    const int got = co_await inner;
    co_return got + 1;
}
struct head_counter {
    int n = 0;
    int add(int k) { return n += k; }
};

task<void> wait_until(std::function<bool()> is_so, const char* what) {
    for (int i = 0; i < 2000 && !is_so(); ++i) co_await sleep_for(10ms);
    if (!is_so()) throw error(errc::timeout, what);
}

} // namespace

TEST_CASE("a driver's calls run on workers of all nodes", "[cluster][head]") {
    test::in_cluster(1, 3, [](test::sim_nodes& c, driver_of& d) -> task<void> {
        std::vector<ref<int>> results;
        for (int i = 0; i < 100; ++i) results.push_back(remote<&head_twice>(i));
        for (int i = 0; i < 100; ++i) {
            const int got = co_await results[std::size_t(i)];
            CHECK(got == 2 * i);
        }
        auto whole = wait_until([&] { return d.workers.connected() == 6; }, "six workers");
        co_await whole;
        const auto s = c.head().status();
        REQUIRE(s.nodes.size() == 3);
        for (const auto& n : s.nodes) {
            CHECK(n.workers == 2);
            CHECK(n.used == "cpu=2");
        }
        REQUIRE(s.jobs.size() == 1);
        CHECK(s.jobs[0].workers == 6);
        CHECK(s.jobs[0].waiting == 0);
    });
}

TEST_CASE("actors live on nodes and keep their state", "[cluster][head]") {
    test::in_cluster(2, 2, [](test::sim_nodes&, driver_of&) -> task<void> {
        auto making = actor<head_counter>();
        auto a = co_await making;
        int last = 0;
        for (int i = 0; i < 10; ++i) {
            auto r = a.call<&head_counter::add>(1);
            last = co_await r;
        }
        CHECK(last == 10);
    });
}

TEST_CASE("workers come when nodes join later", "[cluster][head]") {
    test::in_cluster(3, 0, [](test::sim_nodes& c, driver_of& d) -> task<void> {
        auto waits = remote<&head_twice>(21);
        co_await sleep_for(5s);
        CHECK_FALSE(waits.ready());
        c.add_node(1);
        const int got = co_await waits;
        CHECK(got == 42);
        c.add_node(4);
        auto whole = wait_until([&] { return d.workers.connected() == 5; }, "five workers");
        co_await whole;
    });
}

TEST_CASE("a driver that wants so many workers gets no more", "[cluster][head]") {
    test::in_cluster(
        4, 2,
        [](test::sim_nodes& c, driver_of& d) -> task<void> {
            auto r = remote<&head_twice>(1);
            co_await r;
            co_await sleep_for(1s);
            CHECK(d.workers.connected() == 3);
            CHECK(c.processes() == 3);
        },
        4, 3);
}

TEST_CASE("calls of a node that is lost run on another one", "[cluster][head]") {
    for (const bool machine : {false, true}) {
        test::in_cluster(5, 2, [machine](test::sim_nodes& c, driver_of& d) -> task<void> {
            auto first = remote<&head_twice>(1);
            co_await first;
            auto whole = wait_until([&] { return d.workers.connected() == 4; }, "four workers");
            co_await whole;
            std::vector<ref<int>> results;
            for (int i = 0; i < 4; ++i) results.push_back(remote<&head_later>(i, 500));
            co_await sleep_for(100ms);
            auto killed = c.kill_agent(c.at(0), machine);
            co_await killed;
            for (int i = 0; i < 4; ++i) {
                const int got = co_await results[std::size_t(i)];
                CHECK(got == i);
            }
            auto less = wait_until([&] { return c.head().status().nodes.size() == 1; }, "a node");
            co_await less;
            CHECK(d.self.stats().workers_lost == 2);
        });
    }
}

TEST_CASE("a lost worker is told with its node and how it ended", "[cluster][head]") {
    test::in_cluster(
        6, 1,
        [](test::sim_nodes& c, driver_of&) -> task<void> {
            auto r = remote<&head_later>.with({.retries = 0})(1, 1000);
            co_await sleep_for(100ms);
            c.at(0).children->kill(c.at(0).children->running().front().pid);
            auto asked = as_result(as_task(r));
            auto outcome = co_await asked;
            REQUIRE_FALSE(outcome);
            CHECK(outcome.error().code() == errc::worker_lost);
            const std::string text = outcome.error().what();
            INFO(text);
            CHECK(text.find("SIGKILL") != text.npos);
            CHECK(text.find("on n1") != text.npos);
        },
        1);
}

TEST_CASE("calls go on while the head is away, and a new head learns what there is",
          "[cluster][head]") {
    test::in_cluster(7, 2, [](test::sim_nodes& c, driver_of& d) -> task<void> {
        auto first = remote<&head_twice>(1);
        co_await first;
        auto whole = wait_until([&] { return d.workers.connected() == 4; }, "four workers");
        co_await whole;
        std::set<std::int64_t> before;
        for (std::size_t i = 0; i < 2; ++i)
            for (const auto& p : c.at(i).children->running()) before.insert(p.pid);
        auto killed = c.kill_head();
        co_await killed;
        for (int i = 0; i < 20; ++i) {
            auto r = remote<&head_later>(i, 100);
            const int got = co_await r;
            CHECK(got == i);
        }
        c.start_head();
        auto back = wait_until(
            [&] {
                const auto s = c.head().status();
                return s.nodes.size() == 2 && s.jobs.size() == 1 && s.jobs[0].workers == 4 &&
                       s.jobs[0].connected;
            },
            "all are back");
        co_await back;
        std::set<std::int64_t> after;
        for (std::size_t i = 0; i < 2; ++i)
            for (const auto& p : c.at(i).children->running()) after.insert(p.pid);
        CHECK(after == before);
        CHECK(d.self.stats().workers_lost == 0);
        for (const auto& n : c.head().status().nodes) CHECK(n.used == "cpu=2");
    });
}

TEST_CASE("a new head takes over what waits beside what runs on its cpus", "[cluster][head]") {
    test::in_cluster(9, 1, [](test::sim_nodes& c, driver_of& d) -> task<void> {
        auto outer = remote<&head_outer>.with({.cpus = 2})(20'000);
        co_await sleep_for(5s);
        std::set<std::int64_t> before;
        for (const auto& p : c.at(0).children->running()) before.insert(p.pid);
        CHECK(before.size() == 2);
        const auto lost = d.self.stats().workers_lost;
        auto killed = c.kill_head();
        co_await killed;
        co_await sleep_for(1s);
        c.start_head();
        auto back = wait_until(
            [&] {
                const auto s = c.head().status();
                return s.nodes.size() == 1 && s.jobs.size() == 1 && s.jobs[0].connected;
            },
            "all are back");
        co_await back;
        co_await sleep_for(1s);
        std::set<std::int64_t> after;
        for (const auto& p : c.at(0).children->running()) after.insert(p.pid);
        CHECK(after == before);
        for (const auto& n : c.head().status().nodes) CHECK(n.used == "cpu=2");
        CHECK(d.self.stats().workers_lost == lost);
        const int got = co_await outer;
        CHECK(got == 20'001);
    });
}

TEST_CASE("a head hears that a task goes on also over the link after the one that was lost",
          "[W7][cluster][head]") {
    test::in_cluster(20, 1, [](test::sim_nodes& c, driver_of&) -> task<void> {
        auto outer = remote<&head_goes_on>.with({.cpus = 2})(4000);
        co_await sleep_for(3s); // it waits
        c.network().partition("head", "driver");
        co_await sleep_for(9s); // the link is given up, and what was said over it
        c.network().heal_all();
        co_await sleep_for(6s);
        const auto s = c.head().status();
        REQUIRE(s.jobs.size() == 1);
        CHECK(s.jobs[0].connected);
        CHECK_FALSE(outer.ready());
        CHECK(s.nodes.at(0).used == "cpu=2");
        const int got = co_await outer;
        CHECK(got == 4000);
    });
}

TEST_CASE("without a head for long an agent ends its workers", "[cluster][head]") {
    test::in_cluster(8, 1, [](test::sim_nodes& c, driver_of& d) -> task<void> {
        auto first = remote<&head_twice>(1);
        co_await first;
        auto killed = c.kill_head();
        co_await killed;
        co_await sleep_for(25s);
        CHECK(c.processes() == 2);
        co_await sleep_for(20s);
        CHECK(c.processes() == 0);
        c.start_head(); // and once more: what is true of the first head is true of each
        auto again = remote<&head_twice>(3);
        co_await again;
        auto killed_again = c.kill_head();
        co_await killed_again;
        co_await sleep_for(25s);
        CHECK(c.processes() == 2);
        co_await sleep_for(20s);
        CHECK(c.processes() == 0);
        auto waits = remote<&head_twice>(4); // until somebody starts a head
        co_await sleep_for(10s);
        CHECK_FALSE(waits.ready());
        c.start_head();
        const int got = co_await waits;
        CHECK(got == 8);
        CHECK(d.self.workers() > 0);
    });
}

TEST_CASE("a driver that dies leaves no workers behind", "[cluster][head]") {
    test::in_cluster(9, 2, [](test::sim_nodes& c, driver_of&) -> task<void> {
        auto other = c.make_driver("second");
        const auto use_it = [](driver_of* d) -> task<void> {
            auto r = remote<&head_twice>(1);
            (void)d;
            co_await r;
        };
        auto used = other->self.run_here(use_it(other.get()));
        co_await used;
        auto busy = wait_until([&] { return c.processes() == 4; }, "four workers");
        co_await busy;
        c.network().crash("second", false); // nobody hears a word of it
        auto ended = other->end();
        co_await ended;
        auto gone = wait_until([&] { return c.processes() == 0; }, "no worker");
        co_await gone;
        auto forgotten = wait_until([&] { return c.head().status().jobs.empty(); }, "no job");
        co_await forgotten;
        auto r = remote<&head_twice>(2); // its room is free again
        const int got = co_await r;
        CHECK(got == 4);
    });
}

TEST_CASE("a drained node gets no workers", "[cluster][head]") {
    test::in_cluster(10, 2, [](test::sim_nodes& c, driver_of& d) -> task<void> {
        auto joined = wait_until([&] { return c.head().status().nodes.size() == 2; }, "two nodes");
        co_await joined;
        auto dialing =
            net::link::connect(c.network().host("tool"), c.head_address(),
                               cluster::detail::cluster_link(c.secret(), "tool", "tool", 1));
        auto l = co_await dialing;
        auto tool = net::requests::over(l);
        auto draining = tool->call<cluster::drain_reply>(cluster::ask_drain{"n1", true});
        const auto told = co_await draining;
        CHECK(told.workers == 0);
        auto wrong = as_result(tool->call<cluster::drain_reply>(cluster::ask_drain{"n7", true}));
        const auto nothing = co_await wrong;
        REQUIRE_FALSE(nothing);
        CHECK(nothing.error().code() == errc::not_found);
        auto r = remote<&head_twice>(1);
        co_await r;
        co_await sleep_for(1s);
        CHECK(d.workers.connected() == 2);
        CHECK(c.at(0).children->running().empty());
        auto closing = tool->close();
        co_await closing;
    });
}

TEST_CASE("a stopped cluster ends its nodes and tells its drivers", "[cluster][head]") {
    test::in_cluster(11, 2, [](test::sim_nodes& c, driver_of&) -> task<void> {
        auto r = remote<&head_twice>(1);
        co_await r;
        auto waits = remote<&head_later>(1, 60'000);
        co_await sleep_for(1s);
        c.head().stop();
        auto asked = as_result(as_task(waits));
        auto outcome = co_await asked;
        REQUIRE_FALSE(outcome);
        const std::string text = outcome.error().what();
        INFO(text);
        CHECK((outcome.error().code() == errc::closed ||
               outcome.error().code() == errc::worker_lost));
        auto later = as_result(as_task(remote<&head_twice>(3)));
        const auto refused = co_await later;
        REQUIRE_FALSE(refused);
        CHECK(std::string(refused.error().what()).find("the cluster was stopped") != text.npos);
        CHECK(loop::current().now() - time_point{} < 30s);
        auto gone = wait_until([&] { return c.processes() == 0; }, "no worker");
        co_await gone;
    });
}

TEST_CASE("two drivers share a cluster that the first one had alone", "[cluster][head]") {
    test::in_cluster(12, 2, [](test::sim_nodes& c, driver_of& d) -> task<void> {
        std::vector<ref<int>> results;
        for (int i = 0; i < 400; ++i) results.push_back(remote<&head_later>(i, 100));
        co_await sleep_for(3s);
        CHECK(d.workers.connected() == 4);
        auto other = c.make_driver("second");
        const auto use_it = [](test::sim_nodes* of) -> task<void> {
            std::vector<ref<int>> mine;
            for (int i = 0; i < 40; ++i) mine.push_back(remote<&head_later>(i, 100));
            for (auto& r : mine) co_await r;
            const auto s = of->head().status();
            REQUIRE(s.jobs.size() == 2);
            CHECK(s.jobs[0].workers == 2);
            CHECK(s.jobs[1].workers == 2);
        };
        const auto begin = c.loop().now();
        auto used = other->self.run_here(use_it(&c));
        co_await used;
        CHECK(c.loop().now() - begin < 4s); // the first one's tasks take ten
        CHECK_FALSE(results.back().ready());
        auto ended = other->end();
        co_await ended;
        auto whole = wait_until([&] { return d.workers.connected() == 4; }, "four workers again");
        co_await whole;
        for (int i = 0; i < 400; ++i) {
            const int got = co_await results[std::size_t(i)];
            CHECK(got == i);
        }
        CHECK(d.self.stats().retried == 0);
    });
}

TEST_CASE("a node that is drained gets rid of its workers, but for those with actors",
          "[cluster][head]") {
    test::in_cluster(13, 2, [](test::sim_nodes& c, driver_of& d) -> task<void> {
        auto making = actor<head_counter>();
        auto a = co_await making;
        auto whole = wait_until([&] { return d.workers.connected() == 4; }, "four workers");
        co_await whole;
        auto long_one = remote<&head_later>(5, 3000);
        auto dialing =
            net::link::connect(c.network().host("tool"), c.head_address(),
                               cluster::detail::cluster_link(c.secret(), "tool", "tool", 1));
        auto l = co_await dialing;
        auto tool = net::requests::over(l);
        for (const char* node : {"n1", "n2"}) {
            auto draining = tool->call<cluster::drain_reply>(cluster::ask_drain{node, true});
            const auto told = co_await draining;
            CHECK(told.workers == 2);
        }
        co_await sleep_for(1s);
        CHECK(c.processes() <= 2); // the actor's, and the one with the task if that is another
        CHECK(c.processes() >= 1);
        const int got = co_await long_one;
        CHECK(got == 5);
        co_await sleep_for(1s);
        CHECK(c.processes() == 1);
        auto more = a.call<&head_counter::add>(3);
        const int sum = co_await more;
        CHECK(sum == 3);
        auto undo = tool->call<cluster::drain_reply>(cluster::ask_drain{"n1", false});
        co_await undo;
        auto r = remote<&head_twice>(1);
        co_await r;
        auto closing = tool->close();
        co_await closing;
    });
}

TEST_CASE("leases that do not divide evenly do not go round", "[cluster][head]") {
    test::in_cluster(
        14, 1,
        [](test::sim_nodes& c, driver_of& d) -> task<void> {
            auto r = remote<&head_twice>(1);
            co_await r;
            auto other = c.make_driver("second");
            const auto use_it = [](test::sim_nodes* of, driver_of* first,
                                   driver_of* second) -> task<void> {
                auto mine = remote<&head_twice>(2);
                co_await mine;
                co_await sleep_for(5s);
                CHECK(first->workers.connected() + second->workers.connected() == 3);
                std::set<std::int64_t> before, after;
                for (const auto& p : of->at(0).children->running()) before.insert(p.pid);
                co_await sleep_for(30s);
                for (const auto& p : of->at(0).children->running()) after.insert(p.pid);
                CHECK(before == after);
            };
            auto used = other->self.run_here(use_it(&c, &d, other.get()));
            co_await used;
            auto ended = other->end();
            co_await ended;
        },
        3);
}

TEST_CASE("a driver whose actors keep some workers gives others", "[cluster][head]") {
    test::in_cluster(
        15, 1,
        [](test::sim_nodes& c, driver_of& d) -> task<void> {
            auto whole = wait_until([&] { return d.workers.connected() == 4; }, "four workers");
            auto r = remote<&head_twice>(1);
            co_await r;
            co_await whole;
            auto making = actor<head_counter>(), making_too = actor<head_counter>();
            auto a = co_await making;
            auto b = co_await making_too;
            auto other = c.make_driver("second");
            const auto use_it = [](driver_of* second) -> task<void> {
                auto mine = remote<&head_twice>(2);
                co_await mine;
                auto fair =
                    wait_until([&] { return second->workers.connected() == 2; }, "its share");
                co_await fair;
            };
            auto used = other->self.run_here(use_it(other.get()));
            co_await used;
            auto x = a.call<&head_counter::add>(1), y = b.call<&head_counter::add>(1);
            const int sum = co_await x + co_await y;
            CHECK(sum == 2);
            auto ended = other->end();
            co_await ended;
        },
        4);
}

TEST_CASE("drivers that have one core between them take turns", "[cluster][head]") {
    test::in_cluster(
        16, 1,
        [](test::sim_nodes& c, driver_of& d) -> task<void> {
            std::vector<ref<int>> mine;
            for (int i = 0; i < 300; ++i) mine.push_back(remote<&head_later>(i, 100));
            co_await sleep_for(1s);
            auto other = c.make_driver("second");
            const auto use_it = []() -> task<void> {
                auto r = remote<&head_twice>(2);
                co_await r;
            };
            const auto begin = c.loop().now();
            auto used = other->self.run_here(use_it());
            co_await used;
            CHECK(c.loop().now() - begin < 5s);
            auto ended = other->end();
            co_await ended;
            for (auto& r : mine) co_await r;
            CHECK(d.self.stats().retried == 0);
        },
        1);
}

TEST_CASE("drivers take turns with one core also while a task waits for its own tasks",
          "[W7][cluster][head]") {
    test::in_cluster(
        18, 1,
        [](test::sim_nodes& c, driver_of& d) -> task<void> {
            auto mine = remote<&head_deep>(8);
            co_await sleep_for(1500ms);
            auto other = c.make_driver("second");
            const auto use_it = []() -> task<void> {
                auto r = remote<&head_twice>(2);
                auto asked = as_result(with_timeout(as_task(r), 60s));
                const auto got = co_await asked;
                CHECK(got);
            };
            auto used = other->self.run_here(use_it());
            co_await used;
            auto ended = other->end();
            co_await ended;
            auto asked = as_result(with_timeout(as_task(mine), 60s));
            const auto got = co_await asked;
            REQUIRE(got);
            CHECK(*got == 8);
            CHECK(d.self.stats().retried == 0);
        },
        1);
}

TEST_CASE("what a task on a drained node waits for runs on another node", "[W7][cluster][head]") {
    test::in_cluster(
        19, 2,
        [](test::sim_nodes& c, driver_of& d) -> task<void> {
            auto outer = remote<&head_deep>(3);
            co_await sleep_for(500ms);
            REQUIRE(c.processes() == 1); // the driver wants no more
            const auto& drained = c.at(c.at(0).children->running().empty() ? 1 : 0);
            auto draining = test::drain(&c, drained.host, true);
            co_await draining;
            auto asked = as_result(with_timeout(as_task(outer), 60s));
            const auto got = co_await asked;
            REQUIRE(got);
            CHECK(*got == 3);
            co_await sleep_for(1s);
            CHECK(drained.children->running().empty());
            CHECK(c.processes() == 1);
            CHECK(d.workers.connected() == 1);
        },
        2, 1);
}

TEST_CASE("a head that is cancelled is taken for one that crashed", "[cluster][head]") {
    test::in_cluster(17, 1, [](test::sim_nodes& c, driver_of& d) -> task<void> {
        auto r = remote<&head_twice>(1);
        co_await r;
        auto cancelled = c.cancel_head();
        co_await cancelled;
        auto more = remote<&head_later>(2, 1000);
        const int got = co_await more;
        CHECK(got == 2);
        c.start_head();
        auto back =
            wait_until([&] { return c.head().status().nodes.size() == 1; }, "the node is back");
        co_await back;
        CHECK(d.self.stats().workers_lost == 0);
    });
}

namespace {

cluster::known_lease lease_at(std::uint64_t node) {
    cluster::known_lease out;
    out.number = 1;
    out.demand = "cpu=1";
    out.node = node;
    return out;
}

task<void> join_as_node(test::cluster_peer* node, test::sim_nodes* c,
                        std::vector<cluster::held_lease> holds) {
    auto dialing = node->dial(c, "raw", 7);
    co_await dialing;
    auto joining = node->way->call<cluster::node_welcome>(test::peer_node(std::move(holds)));
    (void)co_await joining;
}

} // namespace

TEST_CASE("a lease that was given back at once is ended so whenever its node comes",
          "[cluster][head]") {
    test::in_world_of_nodes(18, [](test::sim_nodes& c) -> task<void> { // NOLINT: outlives it
        c.start_head();
        test::cluster_peer driver, node, again;
        auto dialing = driver.dial(&c, "asks", 5);
        co_await dialing;
        auto joining =
            driver.way->call<cluster::driver_welcome>(test::peer_driver("asks", {lease_at(7)}));
        (void)co_await joining;
        driver.way->tell(cluster::return_lease{1, true}); // a head that knows nothing is told so
        co_await sleep_for(1s);
        auto comes = join_as_node(&node, &c, {test::peer_lease(5, 1)});
        co_await comes;
        co_await sleep_for(100ms);
        REQUIRE(node.stops.size() == 1);
        CHECK(node.stops[0].lease == cluster::lease_name{5, 1});
        CHECK(node.stops[0].at_once);
        auto comes_again = join_as_node(&again, &c, {test::peer_lease(5, 1)}); // the order is lost
        co_await comes_again;
        co_await sleep_for(100ms);
        REQUIRE(again.stops.size() == 1);
        CHECK(again.stops[0].at_once);
        for (auto* one : {&again, &node, &driver}) {
            auto gone = one->close();
            co_await gone;
        }
    });
}

TEST_CASE("a lease whose worker has come before the news of its grant is not granted again",
          "[cluster][head][F8]") {
    test::in_world_of_nodes(21, [](test::sim_nodes& c) -> task<void> { // NOLINT: outlives it
        c.head_defaults.driver_grace = 4s;
        c.start_head();
        test::cluster_peer driver, node, has_lost_it;
        auto dialing = driver.dial(&c, "asks", 5);
        co_await dialing;
        auto hello = test::peer_driver("asks", {lease_at(cluster::unknown_node)});
        hello.leases.push_back(lease_at(cluster::unknown_node));
        hello.leases.back().number = 2;
        hello.leases.push_back(lease_at(cluster::unknown_node));
        hello.leases.back().number = 3;
        auto joining = driver.way->call<cluster::driver_welcome>(std::move(hello));
        (void)co_await joining;
        auto comes = join_as_node(&node, &c, {test::peer_lease(5, 1)});
        co_await comes;
        co_await sleep_for(100ms);
        CHECK(node.starts.empty()); // there is room for all of them
        CHECK(node.stops.empty());
        REQUIRE(driver.grants.size() == 1);
        CHECK(driver.grants[0].lease == 1);
        CHECK(driver.grants[0].node == 7);
        CHECK(driver.ends.empty());
        // A worker that has ended while the head was away.
        auto dials = has_lost_it.dial(&c, "raw-2", 8);
        co_await dials;
        auto told = test::peer_node({});
        told.name = "raw-2";
        told.ended.push_back({{5, 2}, true, "killed by signal 9 (SIGKILL)", 0, false});
        auto tells = has_lost_it.way->call<cluster::node_welcome>(std::move(told));
        (void)co_await tells;
        co_await sleep_for(100ms);
        REQUIRE(driver.ends.size() == 1);
        CHECK(driver.ends[0].lease == 2);
        CHECK(driver.ends[0].started);
        co_await sleep_for(5s); // nobody has the third one
        REQUIRE(driver.ends.size() == 2);
        CHECK(driver.ends[1].lease == 3);
        CHECK(driver.grants.size() == 1);
        for (auto* one : {&has_lost_it, &node, &driver}) {
            auto gone = one->close();
            co_await gone;
        }
    });
}

namespace {

task<void> note_pids(sim::children* of, std::set<std::int64_t>* seen) {
    for (;;) {
        for (const auto& p : of->running()) seen->insert(p.pid);
        co_await sleep_for(1ms);
    }
}

task<void> kill_head_and_node(test::sim_nodes* c) {
    auto head = c->kill_head();
    co_await head;
    auto node = c->kill_agent(c->at(0), true);
    co_await node;
}

} // namespace

TEST_CASE("a worker that came before the news of its grant is not taken for one that waits",
          "[cluster][head][F8]") {
    const auto body = [](test::sim_nodes& c, driver_of& d) -> task<void> {
        auto first = remote<&head_twice>(1);
        co_await first;
        std::set<std::int64_t> seen;
        scope watching;
        watching.spawn(note_pids(c.at(0).children.get(), &seen));
        c.network().block("head", "driver"); // what it asks for the head still hears
        auto r = remote<&head_later>.with({.memory = 1 << 20})(5, 5000);
        auto runs = wait_until([&] { return d.workers.connected() == 2; }, "a worker for it");
        co_await runs;
        auto killed = kill_head_and_node(&c);
        co_await killed;
        co_await sleep_for(10s); // the link is given up, with what is still on its way
        c.network().heal_all();
        c.start_head();
        c.start_agent(c.at(0));
        const int got = co_await r; // on another worker
        CHECK(got == 5);
        co_await sleep_for(60s); // the other one is given up, and replaced
        watching.cancel();
        auto joined = as_result(watching.join());
        (void)co_await joined;
        CHECK(seen.size() == 4); // two before, two after: nobody was started to be refused
    };
    test::in_cluster(22, 1, body, 2, 1);
}

TEST_CASE("a driver that a node tells of may come as long as after a lost link",
          "[cluster][head]") {
    sim::disk disk;
    test::in_world_of_nodes(19, [&](test::sim_nodes& c) -> task<void> { // NOLINT: outlives it
        c.head_disk = &disk;
        c.head_defaults.driver_grace = 4s;
        c.start_head();
        auto first = test::say_hello(&c, 5, test::peer_driver("asks"));
        const auto welcome = co_await first;
        REQUIRE(welcome);
        co_await sleep_for(100ms);
        auto killed = c.kill_head();
        co_await killed;
        c.start_head();
        REQUIRE(c.head().status().jobs.size() == 1);
        co_await sleep_for(3s);
        test::cluster_peer node;
        auto comes = join_as_node(&node, &c, {test::peer_lease(5, 1)});
        co_await comes;
        co_await sleep_for(3s);
        CHECK(node.stops.empty());
        co_await sleep_for(2s);
        CHECK(node.stops.size() == 1);
        auto gone = node.close();
        co_await gone;
    });
}

TEST_CASE("what a driver says of namespaces is bounded", "[cluster][head]") {
    test::in_world_of_nodes(20, [](test::sim_nodes& c) -> task<void> { // NOLINT: outlives it
        c.start_head();
        auto long_one = test::peer_driver("asks");
        long_one.visits.push_back({std::string(256, 'x'), 1});
        auto first = test::say_hello(&c, 5, long_one);
        const auto refused = co_await first;
        REQUIRE_FALSE(refused);
        CHECK(refused.error().code() == errc::too_large);
        auto other = test::peer_driver("asks");
        auto second = test::say_hello(&c, 6, other);
        const auto taken = co_await second;
        CHECK(taken);
        other.space = "prod";
        auto third = test::say_hello(&c, 6, other);
        const auto changed = co_await third;
        REQUIRE_FALSE(changed);
        CHECK(changed.error().code() == errc::malformed);
    });
}

namespace {

/// A driver with this hello, over a link of its own.
task<void> join_as_driver(test::cluster_peer* driver, test::sim_nodes* c,
                          cluster::driver_hello hello) {
    auto dialing = driver->dial(c, hello.host, 5);
    co_await dialing;
    auto joining = driver->way->call<cluster::driver_welcome>(std::move(hello));
    (void)co_await joining;
    co_await sleep_for(100ms);
}
task<void> lose_link(test::cluster_peer* one) {
    one->abort();
    auto gone = one->close();
    co_await gone;
}

} // namespace

TEST_CASE("who undoes a drain withdraws what was asked back for it", "[cluster][head]") {
    test::in_world_of_nodes(23, [](test::sim_nodes& c) -> task<void> { // NOLINT: outlives it
        c.start_head();
        test::cluster_peer node, first, second, third;
        auto comes = join_as_node(&node, &c, {test::peer_lease(5, 1), test::peer_lease(5, 2)});
        co_await comes;
        auto hello = test::peer_driver("asks", {lease_at(7), lease_at(7)});
        hello.leases.back().number = 2;
        auto joins = join_as_driver(&first, &c, hello);
        co_await joins;
        auto draining = test::drain(&c, "raw", true);
        co_await draining;
        co_await sleep_for(100ms);
        REQUIRE(first.recalls.size() == 2);
        CHECK_FALSE(first.recalls[0].withdrawn);
        CHECK(first.recalls[0].why == "node raw is drained");
        first.way->tell(cluster::keep_lease{2}); // its worker has actors
        co_await sleep_for(100ms);
        auto lost = lose_link(&first);
        co_await lost;
        auto again = join_as_driver(&second, &c, hello);
        co_await again;
        CHECK(second.recalls.empty()); // it is as it was
        auto undoing = test::drain(&c, "raw", false);
        co_await undoing;
        co_await sleep_for(100ms);
        REQUIRE(second.recalls.size() == 1);
        CHECK(second.recalls[0].lease == 1);
        CHECK(second.recalls[0].withdrawn);
        auto lost_too = lose_link(&second); // with what it was told, for all the head knows
        co_await lost_too;
        auto once_more = join_as_driver(&third, &c, hello);
        co_await once_more;
        REQUIRE(third.recalls.size() == 1);
        CHECK(third.recalls[0].lease == 1);
        CHECK(third.recalls[0].withdrawn);
        for (auto* one : {&third, &node}) {
            auto gone = one->close();
            co_await gone;
        }
    });
}

TEST_CASE("a driver that comes back is told again what no node could hold", "[cluster][head]") {
    test::in_world_of_nodes(24, [](test::sim_nodes& c) -> task<void> { // NOLINT: outlives it
        c.start_head();
        test::cluster_peer node, first, second;
        auto comes = join_as_node(&node, &c, {});
        co_await comes;
        auto hello = test::peer_driver("asks", {lease_at(0), lease_at(0)});
        hello.leases.back().number = 2;
        hello.leases.back().demand = "cpu=1,gpu=1";
        hello.groups.push_back({4, 0, {"cpu=3"}, {}});
        auto joins = join_as_driver(&first, &c, hello);
        co_await joins;
        CHECK(!first.waits.empty());
        CHECK(!first.groups.empty());
        CHECK(first.grants.size() == 1);
        auto lost = lose_link(&first);
        co_await lost;
        hello.leases.front().node = 7;
        auto again = join_as_driver(&second, &c, hello);
        co_await again;
        REQUIRE(second.waits.size() == 1);
        CHECK(second.waits[0].lease == 2);
        CHECK(second.waits[0].why.find("asks for cpu=1,gpu=1") != std::string::npos);
        REQUIRE(second.groups.size() == 1);
        CHECK(second.groups[0].group == 4);
        CHECK(second.groups[0].impossible);
        for (auto* one : {&second, &node}) {
            auto gone = one->close();
            co_await gone;
        }
    });
}

TEST_CASE("no lease is asked back whose cpus are free already as its tasks wait for others",
          "[W7][cluster][head]") {
    for (const bool for_group : {false, true}) {
        test::in_world_of_nodes(25, [&](test::sim_nodes& c) -> task<void> { // NOLINT: outlives it
            c.start_head();
            test::cluster_peer node, driver;
            auto comes = join_as_node(&node, &c, {test::peer_lease(5, 1), test::peer_lease(5, 2)});
            co_await comes;
            auto hello = test::peer_driver("asks", {lease_at(7), lease_at(7)});
            hello.leases.back().number = 2;
            auto joins = join_as_driver(&driver, &c, hello);
            co_await joins;
            driver.way->tell(cluster::lease_blocked{2, true});
            if (for_group)
                driver.way->tell(cluster::want_group{4, 0, {"cpu=2"}});
            else
                driver.way->tell(cluster::want_lease{3, "cpu=2", "", true, "", ""});
            co_await sleep_for(1s);
            REQUIRE(driver.recalls.size() == 1);
            CHECK(driver.recalls[0].lease == 1);
            driver.way->tell(cluster::return_lease{1});
            co_await sleep_for(100ms);
            REQUIRE(node.stops.size() == 1);
            cluster::worker_ended over;
            over.what.lease = {5, 1};
            node.way->tell(over);
            co_await sleep_for(100ms);
            if (for_group)
                CHECK(driver.placed.size() == 1);
            else
                CHECK(node.starts.size() == 1);
            for (auto* one : {&driver, &node}) {
                auto gone = one->close();
                co_await gone;
            }
        });
    }
}
