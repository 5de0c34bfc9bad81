// SPDX-License-Identifier: Apache-2.0
#include <skein/cluster/detail/leased_groups.hpp>
#include <skein/core/sleep.hpp>
#include <skein/rt/runtime.hpp>
#include <skein/sim/loop.hpp>
#include <skein/sim/network.hpp>
#include <tests/support/log_lines.hpp>

#include <cstdint>
#include <functional>
#include <memory>

#include <catch2/catch_test_macros.hpp>

namespace leased_groups_test {

using namespace skein;
using namespace skein::cluster;
using namespace std::chrono_literals;

/// Leases of which the test says whether they have left.
struct fake_leases final : cluster::detail::group_leases {
    bool goes_on = true, has_left = false;
    int filled = 0, asked = 0;

    [[nodiscard]] bool is_filling() const override { return goes_on; }
    void fill() override { ++filled; }
    bool leave_group(std::uint64_t) override {
        ++asked;
        return has_left;
    }
};

/// Nobody hears from a head that is not there.
struct deaf final : cluster::detail::head_events {
    driver_hello describe() override { return {}; }
    void on_welcome(const driver_welcome&) override {}
    std::string worker_of(std::uint64_t) const override { return {}; }
    void on_granted(const lease_granted&) override {}
    void on_ended(const lease_ended&) override {}
    void on_recalled(const lease_recalled&) override {}
};

struct world {
    sim::loop loop{5};
    sim::network network{loop, sim::faults()};
    rt::runtime driver{rt::runtime_options{}};
    deaf events;
    fake_leases leases;
    event stopping;
    cluster::detail::leased_groups groups{driver, head, leases, 100ms};
    cluster::detail::head_client head{loop,      network.host("app"), {},     {},
                                      "workers", &stopping,           events, groups};

    /// Does it with a group of four cpus.
    void run(std::function<task<void>(world&)> body) {
        loop.run(with_group(this, std::move(body)));
    }
    static task<void> with_group(world* w, std::function<task<void>(world&)> body) {
        w->groups.want({1, sched::group_strategy::pack, {bundle(), bundle()}});
        auto work = body(*w);
        co_await work;
        auto stopped = w->groups.stop();
        co_await stopped;
    }
    static sched::resources bundle() {
        sched::resources out;
        out.cpu = 2;
        return out;
    }
    [[nodiscard]] std::int64_t cpus(bool any_blocked = false) const {
        return groups.cpus_in_steps(any_blocked) / sched::amount::steps;
    }
};

TEST_CASE("a group counts when it has places, and while it waits for some that there are",
          "[cluster]") {
    const test::log_lines log("cluster");
    world all;
    all.run([&log](world& w) -> task<void> {
        CHECK(w.leases.filled == 1);
        CHECK(w.cpus() == 4);
        CHECK(w.cpus(true) == 0); // who waits for calls comes first
        CHECK(w.groups.any_waits());
        w.groups.on_group_placed({1, {}});
        CHECK(w.cpus(true) == 4);
        CHECK(!w.groups.any_waits());
        w.groups.on_group_waits({1, false, "n1 was lost"});
        CHECK(log.count("has lost places") == 1);
        w.groups.on_group_waits({1, true, "no node has 2 cpus"});
        CHECK(w.cpus() == 0);
        w.groups.say_impossible();
        w.groups.on_group_waits({1, true, "no node has 2 cpus"});
        w.groups.say_impossible();
        CHECK(log.count("no nodes could hold a placement group") == 1);
        w.groups.on_group_refused({1, "too many bundles"});
        CHECK(!w.groups.any_waits());
        co_return;
    });
}

TEST_CASE("a group that nobody holds closes when its leases have gone", "[cluster]") {
    world all;
    all.run([](world& w) -> task<void> {
        w.groups.drop(1);
        w.groups.drop(1);
        co_await sleep_for(250ms);
        CHECK(w.leases.asked == 3);
        CHECK(w.cpus() == 4);
        w.leases.has_left = true;
        co_await sleep_for(100ms);
        CHECK(w.leases.asked == 4);
        CHECK(w.cpus() == 0);
        CHECK(w.leases.filled == 2);
    });
}

TEST_CASE("when all ends a group is gone at once", "[cluster]") {
    world all;
    all.run([](world& w) -> task<void> {
        w.leases.goes_on = false;
        w.groups.drop(1);
        CHECK(w.cpus() == 0);
        CHECK(w.leases.asked == 0);
        co_return;
    });
}

} // namespace leased_groups_test
