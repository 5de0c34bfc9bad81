// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of cluster/detail/worker_news.hpp.

#include <skein/core/log.hpp>

#include <bit>

#include <fmt/format.h>

namespace skein::cluster::detail {

SKEIN_INLINE void worker_news::waits(const want_lease& wish, const std::string& why) {
    if (!said_waits_.insert(wish.demand + ' ' + wish.label).second) return;
    logging::warn("cluster", "no node could hold what calls ask for: they wait", {{"why", why}});
}

SKEIN_INLINE void worker_news::has_room(const want_lease& wish) {
    if (!said_waits_.empty()) said_waits_.erase(wish.demand + ' ' + wish.label);
}

SKEIN_INLINE void worker_news::held_up(const std::string& why) {
    logging::warn("cluster", "calls wait for room that others have", {{"why", why}});
}

SKEIN_INLINE void worker_news::no_nodes(bool is_waited_for, bool has_leases) {
    nodes_return_ = nodes_return_ && has_leases;
    if (!is_waited_for || nodes_return_ || std::exchange(said_no_nodes_, true)) return;
    logging::warn("cluster", "no node takes workers: calls wait for one",
                  {{"head", head_},
                   {"hint", "skein join adds one; if all are drained, skein drain NODE --undo"}});
}

SKEIN_INLINE void worker_news::lost(const lost_worker& one,
                                    const std::function<std::size_t()>& workers_there) {
    constexpr std::uint64_t all_of_the_first = 8; // then ever fewer
    const auto is_news = [](std::uint64_t& so_far) {
        return ++so_far <= all_of_the_first || std::has_single_bit(so_far);
    };
    constexpr auto then = "calls that may run again do, on others";
    if (one.node != 0 && one.how.starts_with(fmt::format("node {} was lost", one.node_name))) {
        if (std::exchange(last_lost_node_, one.node) == one.node || !is_news(lost_nodes_)) return;
        logging::warn("cluster", "a node was lost with its workers",
                      {{"node", one.node_name},
                       {"workers", workers_there()},
                       {"why", one.how},
                       {"then", then}});
        return;
    }
    if (!is_news(lost_workers_)) return;
    logging::warn("cluster", "a worker was lost",
                  {{"worker", fmt::format("worker-{}", one.lease)},
                   {"node", one.node_name},
                   {"pid", one.pid},
                   {"why", one.how.empty() ? "its connection is broken" : one.how},
                   {"then", then}});
}

} // namespace skein::cluster::detail
