// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of cluster/leased_workers.hpp: what people are told of a driver's cluster.

#include <skein/cluster/detail/leased_workers_state.hpp>
#include <skein/core/log.hpp>

#include <bit>
#include <cstdint>
#include <string>
#include <utility>

#include <fmt/format.h>

namespace skein::cluster {

/// Of each demand once: that no node could hold it.
SKEIN_INLINE void leased_workers::state::say_what_waits() {
    if (!knows_size || !head.is_asking()) return; // when the size of the cluster is known
    if (cluster_nodes == 0) return say_no_nodes();
    said_no_nodes = nodes_return = false;
    for (const auto& [number, l] : leases) {
        const auto why = std::exchange(l->why, {});
        if (why.empty() || l->node != 0) continue;
        const auto k = wish(*l);
        if (!said_why.insert(k.demand + ' ' + k.label).second) continue;
        logging::warn("cluster", "no node could hold what calls ask for: they wait",
                      {{"why", why}});
    }
    for (auto& [number, g] : groups) {
        const auto why = std::exchange(g.why, {});
        if (why.empty() || std::exchange(g.is_said, true)) continue;
        logging::warn("cluster", "no nodes could hold a placement group: it waits",
                      {{"group", number}, {"why", why}});
    }
}

/// A node could not start its worker for a reason of its own: it rests, and others are asked.
SKEIN_INLINE void leased_workers::state::on_other_node(const lease& l) {
    count_expected();
    if (stopping.is_set()) return;
    const auto reason =
        fmt::format("{} could not start a worker, another node is asked: {}", l.node_name, l.how);
    const bool is_counted = said_failures.size() < most_said || said_failures.contains(reason);
    if (std::has_single_bit(++said_failures[is_counted ? reason : std::string()]))
        logging::warn("cluster", reason);
    later.spawn(fill_later(this, how.times.child_restart_first));
}

/// None of its calls could begin for some seconds, for others have the room.
SKEIN_INLINE void leased_workers::state::say_held_up(const std::string& why) {
    logging::warn("cluster", "calls wait for room that others have", {{"why", why}});
}

/// Once until there is one again.
SKEIN_INLINE void leased_workers::state::say_no_nodes() {
    bool any = visits_only && visits.empty(), here = false; // a space server is waited for, too
    for (const auto& [number, l] : leases) {
        l->why.clear(); // with the first node the head says something else
        here = here || l->node != 0;
        any = any || (l->node == 0 && !l->wire);
    }
    for (auto& [number, g] : groups) {
        g.why.clear();
        any = any || !g.placed;
    }
    nodes_return = nodes_return && here;
    if (!any || nodes_return || std::exchange(said_no_nodes, true)) return;
    logging::warn("cluster", "no node takes workers: calls wait for one",
                  {{"head", to_string(how.head)},
                   {"hint", "skein join adds one; if all are drained, skein drain NODE --undo"}});
}

/// A worker ended that nobody had asked to. Of those of a node that was lost once.
SKEIN_INLINE void leased_workers::state::say_lost(const lease& l, std::int64_t pid) {
    if (stopping.is_set() || gave_up || l.ends_now) return;
    constexpr std::uint64_t all_of_the_first = 8; // then ever fewer
    const auto is_news = [](std::uint64_t& so_far) {
        return ++so_far <= all_of_the_first || std::has_single_bit(so_far);
    };
    constexpr auto then = "calls that may run again do, on others";
    if (l.node != 0 && l.how.starts_with(fmt::format("node {} was lost", l.node_name))) {
        if (std::exchange(last_lost_node, l.node) == l.node || !is_news(lost_nodes)) return;
        std::size_t workers = 0;
        for (const auto& [number, other] : leases) workers += other->node == l.node;
        logging::warn(
            "cluster", "a node was lost with its workers",
            {{"node", l.node_name}, {"workers", workers}, {"why", l.how}, {"then", then}});
        return;
    }
    if (!is_news(lost_workers)) return;
    logging::warn("cluster", "a worker was lost",
                  {{"worker", fmt::format("worker-{}", l.number)},
                   {"node", l.node_name},
                   {"pid", pid},
                   {"why", l.how.empty() ? "its connection is broken" : l.how},
                   {"then", then}});
}

/// For the head's numbers: once a second, if there is news.
SKEIN_INLINE task<void> leased_workers::state::tell_calls(state* self) {
    while (!self->stopping.is_set()) {
        auto woken = detail::wait_at_most(&self->stopping, std::chrono::seconds(1));
        co_await woken;
        self->tell_calls_now();
    }
}

SKEIN_INLINE void leased_workers::state::tell_calls_now() {
    const auto& now = driver.stats();
    const driver_calls m{now.submitted, now.done, now.failed};
    if (m.submitted == told_calls.submitted && m.done == told_calls.done) return;
    if (head.tell(m)) told_calls = m;
}

} // namespace skein::cluster
