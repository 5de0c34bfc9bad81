// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of cluster/head.hpp: nodes that cannot start anything rest, and what they could
// not start goes elsewhere. See node_rest.hpp.

#include <skein/cluster/detail/head_state.hpp>
#include <skein/core/log.hpp>
#include <skein/core/loop.hpp>

#include <algorithm>
#include <chrono>
#include <string>

#include <fmt/format.h>

namespace skein::cluster {

SKEIN_INLINE void head::state::node_failed(detail::head_node& n, const std::string& why) {
    const auto now = on_loop.now();
    const bool begins = n.rest.failed(now, why);
    (void)leases.schedule().rest(n.room->place(), "cannot start anything: " + why);
    if (!begins) return;
    logging::warn("head", "a node cannot start anything and gets nothing for a while",
                  {{"node", n.room->name},
                   {"for", fmt::format("{:.3g} s", to_seconds(n.rest.left(now)))},
                   {"why", why}});
    ++changes;
    ++node_changes;
}

SKEIN_INLINE void head::state::node_works(detail::head_node& n) {
    if (!n.rest.worked()) return;
    (void)leases.schedule().rest(n.room->place(), {});
    ++changes;
    ++node_changes;
}

/// Those whose time is over are tried again; of the others bundles without a worker go elsewhere.
SKEIN_INLINE void head::state::end_rests() {
    const auto now = on_loop.now();
    for (auto& [number, n] : nodes) {
        if (n->rest.left(now) != duration(0)) leases.schedule().move_bundles(n->room->place());
        if (!n->rest.is_over(now)) continue;
        (void)leases.schedule().rest(n->room->place(), {});
        ++changes;
        ++node_changes;
    }
}

} // namespace skein::cluster
