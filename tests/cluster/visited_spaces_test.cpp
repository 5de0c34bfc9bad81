// SPDX-License-Identifier: Apache-2.0
#include <skein/cluster/detail/head_client.hpp>
#include <skein/cluster/detail/visited_spaces.hpp>
#include <skein/core/sleep.hpp>
#include <skein/proc/build_id.hpp>
#include <skein/rt/runtime.hpp>
#include <skein/rt/runtime_context.hpp>
#include <tests/support/sim_nodes.hpp>

#include <chrono>
#include <memory>
#include <string>

#include <catch2/catch_test_macros.hpp>

namespace visited_spaces_test {

using namespace skein;
using namespace skein::cluster;
using namespace std::chrono_literals;

/// A driver that has joined a head, or will.
struct asker final : cluster::detail::head_events, cluster::detail::group_events {
    explicit asker(test::sim_nodes& c)
        : home(c.network().loop_of("app")), driver(who()),
          head(home, c.network().host("app"), link_of(c), {}, "workers", &stopping, *this, *this),
          spaces(home, c.network().host("app"), head, driver, {c.head_address(), c.secret(), 5s},
                 &stopping) {}
    static rt::runtime_options who() {
        rt::runtime_options out;
        out.host = "app";
        out.incarnation = 5;
        return out;
    }
    static cluster::detail::head_link_options link_of(test::sim_nodes& c) {
        cluster::detail::head_link_options out;
        out.head = c.head_address();
        out.secret = c.secret();
        out.name = out.host = "app";
        out.incarnation = 5;
        out.join_within = 20s;
        return out;
    }
    driver_hello describe() override {
        driver_hello h;
        h.name = h.host = "app";
        h.executable = "/app";
        h.address = "sim:app:1";
        h.build = proc::build_id();
        h.visits = spaces.all();
        return h;
    }
    void on_welcome(const driver_welcome&) override {}
    std::string worker_of(std::uint64_t) const override { return {}; }
    void on_granted(const lease_granted&) override {}
    void on_ended(const lease_ended&) override {}
    void on_recalled(const lease_recalled&) override {}
    void on_group_placed(const group_placed&) override {}
    void on_group_waits(const group_waits&) override {}
    void on_group_refused(const group_refused&) override {}
    void on_space_lost(const space_lost& m) override { spaces.end(m); }

    loop& home;
    rt::runtime driver;
    event stopping;
    cluster::detail::head_client head;
    cluster::detail::visited_spaces spaces;
    scope running;
};

task<void> end(asker* a) {
    const loop::use on_its_host(a->home);
    a->stopping.set();
    auto left = as_result(a->running.join());
    (void)co_await left;
    auto parted = a->head.part();
    co_await parted;
}

task<std::string> fault_of(asker* a) {
    auto finding = as_result(a->spaces.find("shop", 0));
    const auto found = co_await finding;
    co_return found ? std::string() : found.error().text();
}

TEST_CASE("a namespace is looked for until its time is over, the driver gives up or ends",
          "[cluster]") {
    test::in_world_of_nodes(1, [](test::sim_nodes& c) -> task<void> { // NOLINT: outlives it
        asker a(c);
        const auto begun = c.loop().now();
        auto late = fault_of(&a);
        const auto is_late = co_await late;
        CHECK(is_late == "namespace \"shop\" was not reached within 5 s: the head was not reached");
        CHECK(c.loop().now() - begun >= 5s);
        a.stopping.set();
        auto ended = fault_of(&a);
        const auto is_ended = co_await ended;
        CHECK(is_ended == "a namespace was asked for while the program ends");
        a.spaces.give_up(error(errc::closed, "the cluster was stopped"));
        auto gone = fault_of(&a);
        const auto is_gone = co_await gone;
        CHECK(is_gone == "the cluster was stopped");
    });
}

TEST_CASE("space servers that were found are visited until they end", "[cluster]") {
    test::in_world_of_nodes(2, [](test::sim_nodes& c) -> task<void> { // NOLINT: outlives it
        c.start_head();
        c.add_node(2);
        asker a(c);
        a.running.spawn(a.head.serve());
        auto finding = a.spaces.find("shop", 0);
        const auto place = co_await finding;
        REQUIRE(a.spaces.all().size() == 1);
        CHECK(a.spaces.all().front().space_server == place.space_server);
        auto again = a.spaces.find("shop", 0);
        const auto same = co_await again;
        CHECK(same.space_server == place.space_server);
        CHECK(a.spaces.all().size() == 1);
        auto killed = c.kill_agent(c.at(0));
        co_await killed;
        for (int i = 0; i < 200 && !a.spaces.all().empty(); ++i) co_await sleep_for(100ms);
        CHECK(a.spaces.all().empty());
        auto ending = end(&a);
        co_await ending;
    });
}

} // namespace visited_spaces_test
