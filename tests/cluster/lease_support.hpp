// SPDX-License-Identifier: Apache-2.0
#pragma once
// A table of leases without a head: the test says which nodes there are, and what they start.

#include <skein/cluster/detail/lease_table.hpp>
#include <skein/core/sleep.hpp>
#include <skein/sim/loop.hpp>

#include <chrono>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace lease_test {

using namespace skein;
using namespace skein::cluster;
using namespace std::chrono_literals;
namespace parts = skein::cluster::detail;
using names = std::vector<lease_name>;

constexpr std::uint64_t app = 1, other = 2, n1 = 71, n2 = 72;

struct fake_head : parts::lease_events {
    parts::lease_table* leases = nullptr;
    names started, stopped;
    std::set<std::uint64_t> away; ///< drivers
    std::vector<std::pair<std::uint64_t, parts::lease_news>> told;
    std::vector<std::string> entries_ended;
    std::vector<std::uint64_t> over;

    [[nodiscard]] bool is_connected(std::uint64_t driver) const override {
        return !away.contains(driver);
    }
    void tell_driver(std::uint64_t driver, const parts::lease_news& news) override {
        told.emplace_back(driver, news);
    }
    void start_process(parts::lease& granted) override {
        started.push_back({granted.of->incarnation, granted.number});
        leases->tell_granted(granted);
    }
    void stop_process(const parts::lease& stopping, bool) override {
        stopped.push_back({stopping.of->incarnation, stopping.number});
    }
    void lease_ends(const parts::lease&, const std::string&) override {}
    void entry_ended(const std::string& job, bool, const std::string& why, const ended_lease&,
                     bool is_ordered) override {
        entries_ended.push_back(job + ": " + why + (is_ordered ? ", ordered" : ""));
    }
    void holder_over(std::uint64_t driver) override { over.push_back(driver); }

    /// The newest of its kind; throws if there is none.
    template <class M>
    [[nodiscard]] M last() const {
        for (auto at = told.rbegin(); at != told.rend(); ++at)
            if (const auto* const m = std::get_if<M>(&at->second)) return *m;
        throw error(errc::not_found, "no driver was told");
    }
};

struct world {
    sim::loop loop{5};
    fake_head head;
    parts::lease_table leases{loop, head, {10s, 2s, 30s, 5s}};

    world() { head.leases = &leases; }

    parts::lease_node& node(std::uint64_t incarnation, const std::string& has) {
        return leases.add_node(incarnation, "n" + std::to_string(incarnation - 70),
                               *sched::parse_resources(has), {});
    }
    void want(std::uint64_t driver, std::uint64_t number, const std::string& demand,
              const std::string& label = {}, bool own = false) {
        leases.want(leases.holder(driver), {number, demand, label, own, {}, {}});
    }
    void pass(duration time) {
        auto body = [](duration length) -> task<void> { co_await sleep_for(length); };
        loop.run(body(time));
    }
    [[nodiscard]] parts::lease_state state(std::uint64_t driver, std::uint64_t number) const {
        return leases.find({driver, number})->state;
    }
};

} // namespace lease_test
