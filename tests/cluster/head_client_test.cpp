// SPDX-License-Identifier: Apache-2.0
#include <skein/cluster/detail/head_client.hpp>
#include <tests/support/cluster_peer.hpp>
#include <tests/support/sim_nodes.hpp>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <catch2/catch_test_macros.hpp>

namespace head_client_test {

using namespace skein;
using namespace skein::cluster;
using namespace std::chrono_literals;

constexpr std::uint64_t app = 5; // the driver

/// A driver that asks for what the test says, and notes what it hears.
struct fake_driver final : cluster::detail::head_events, cluster::detail::group_events {
    explicit fake_driver(test::sim_nodes& c) : home(c.network().loop_of("app")) {
        cluster::detail::head_link_options link;
        link.head = c.head_address();
        link.secret = c.secret();
        link.name = link.host = "app";
        link.incarnation = app;
        link.join_within = 20s;
        head = std::make_unique<cluster::detail::head_client>(home, c.network().host("app"),
                                                              std::move(link), nullptr, "workers",
                                                              &stopping, *this, *this);
        running.spawn(head->serve());
    }
    task<void> end() { return end_it(this); }
    static task<void> end_it(fake_driver* self) {
        self->stopping.set();
        auto left = as_result(self->running.join());
        (void)co_await left;
        auto parted = self->head->part();
        co_await parted;
    }

    driver_hello describe() override {
        auto h = test::peer_driver("app");
        h.has_ranks = true;
        return h;
    }
    void on_welcome(const driver_welcome&) override { heard.emplace_back("welcome"); }
    std::string worker_of(std::uint64_t) const override { return "worker"; }
    void on_granted(const lease_granted& m) override { note("granted", m.lease); }
    void on_ended(const lease_ended& m) override { note("ended", m.lease); }
    void on_unanswered(std::uint64_t lease) override {
        note("unanswered", lease);
        head->give_back(lease);
    }
    void on_recalled(const lease_recalled& m) override { note("recalled", m.lease); }
    void on_group_placed(const group_placed& m) override { note("placed", m.group); }
    void on_group_waits(const group_waits&) override {}
    void on_group_refused(const group_refused& m) override { note("refused", m.group); }
    void note(const char* what, std::uint64_t number) {
        heard.push_back(what + (" " + std::to_string(number)));
    }
    void want(std::uint64_t lease, rank_order rank = {}) {
        head->want({lease, "cpu=1", {}, rank.is_there(), {}, {}, std::move(rank)});
    }

    loop& home;
    event stopping;
    std::unique_ptr<cluster::detail::head_client> head;
    std::vector<std::string> heard;
    scope running;
};

using texts = std::vector<std::string>;
using numbers = std::vector<std::uint64_t>;

/// A node that does nothing.
task<void> join(test::cluster_peer* node, test::sim_nodes* c, std::vector<held_lease> holds) {
    auto dialing = node->dial(c, "raw", 7);
    co_await dialing;
    auto joining = node->way->call<node_welcome>(test::peer_node(std::move(holds)));
    (void)co_await joining;
}
numbers started_at(const test::cluster_peer& node) {
    numbers out;
    for (const auto& one : node.starts) out.push_back(one.lease.number);
    return out;
}
numbers stopped_at(const test::cluster_peer& node) {
    numbers out;
    for (const auto& one : node.stops) out.push_back(one.lease.number);
    return out;
}

/// Starts a head that knows nothing, and this node with two cores.
task<void> begin(test::sim_nodes* c, test::cluster_peer* node, std::vector<held_lease> holds = {}) {
    c->start_head();
    auto joining = join(node, c, std::move(holds));
    co_await joining;
    co_await sleep_for(3s);
}
task<void> end(test::sim_nodes* c, fake_driver* driver, test::cluster_peer* node) {
    const loop::use on_its_host(driver->home);
    auto ended = driver->end();
    co_await ended;
    auto gone = node->close();
    co_await gone;
    auto all = c->end();
    co_await all;
}

TEST_CASE("what was asked for before there is a head is asked for in the hello", "[cluster]") {
    test::in_world_of_nodes(1, [](test::sim_nodes& c) -> task<void> { // NOLINT: outlives it
        test::cluster_peer node;
        fake_driver driver(c);
        driver.want(1);
        driver.want(2);
        driver.want(3);
        driver.head->give_back(2);
        auto beginning = begin(&c, &node);
        co_await beginning;
        CHECK(driver.heard == texts{"welcome", "granted 1", "granted 3"});
        CHECK(started_at(node) == numbers{1, 3});
        driver.head->give_back(1);
        co_await sleep_for(100ms);
        CHECK(stopped_at(node) == numbers{1});
        auto ending = end(&c, &driver, &node);
        co_await ending;
    });
}

TEST_CASE("what was given back while the head was away is not taken up again, and what is to end "
          "is told again",
          "[cluster]") {
    test::in_world_of_nodes(2, [](test::sim_nodes& c) -> task<void> { // NOLINT: outlives it
        test::cluster_peer node, again;
        fake_driver driver(c);
        driver.want(1);
        driver.want(2);
        auto beginning = begin(&c, &node);
        co_await beginning;
        REQUIRE(started_at(node) == numbers{1, 2});
        auto dying = c.kill_head();
        co_await dying;
        auto gone = node.close();
        co_await gone;
        driver.head->give_back(1);
        driver.head->end(2, true);
        auto once_more = begin(&c, &again, {test::peer_lease(app, 1), test::peer_lease(app, 2)});
        co_await once_more;
        REQUIRE(stopped_at(again) == numbers{1, 2});
        CHECK(!again.stops[0].at_once);
        CHECK(again.stops[1].at_once);
        auto ending = end(&c, &driver, &again);
        co_await ending;
    });
}

TEST_CASE("a rank whose order nobody has answered is lost with the link", "[cluster]") {
    test::in_world_of_nodes(3, [](test::sim_nodes& c) -> task<void> { // NOLINT: outlives it
        rank_order rank;
        rank.place = {"SKEIN_RANK=0"};
        rank.argv = {"train"};
        rank.port = 99;
        fake_driver driver(c);
        driver.want(1, rank); // before there is a link
        c.start_head();
        co_await sleep_for(3s);
        driver.want(2, rank); // told, and no node takes it
        auto dying = c.kill_head();
        co_await dying;
        co_await sleep_for(100ms);
        CHECK(driver.heard == texts{"welcome"});
        test::cluster_peer node;
        auto beginning = begin(&c, &node);
        co_await beginning;
        CHECK(driver.heard == texts{"welcome", "unanswered 1", "unanswered 2", "welcome"});
        CHECK(started_at(node).empty()); // they may have run
        auto ending = end(&c, &driver, &node);
        co_await ending;
    });
}

TEST_CASE("groups that are wanted are in each hello with their places, those that were dropped are "
          "not",
          "[cluster]") {
    test::in_world_of_nodes(4, [](test::sim_nodes& c) -> task<void> { // NOLINT: outlives it
        test::cluster_peer node, again;
        fake_driver driver(c);
        driver.head->want_group({1, 0, {"cpu=1"}, {}});
        driver.head->want_group({2, 0, {"cpu=1"}, {}});
        auto beginning = begin(&c, &node);
        co_await beginning;
        CHECK(driver.heard == texts{"welcome", "placed 1", "placed 2"});
        auto dying = c.kill_head();
        co_await dying;
        auto gone = node.close();
        co_await gone;
        driver.head->drop_group(1);
        driver.head->want_group({3, 0, {"cpu=1"}, {}});
        driver.heard.clear();
        auto once_more = begin(&c, &again);
        co_await once_more;
        CHECK(driver.heard ==
              texts{"placed 2", "placed 3", "welcome"}); // the other one was dropped
        auto ending = end(&c, &driver, &again);
        co_await ending;
    });
}

} // namespace head_client_test
