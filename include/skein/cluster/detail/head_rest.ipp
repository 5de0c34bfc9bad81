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
    (void)schedule.rest(n.place(), "cannot start anything: " + why);
    if (!begins) return;
    logging::warn("head", "a node cannot start anything and gets nothing for a while",
                  {{"node", n.name},
                   {"for", fmt::format("{:.3g} s", to_seconds(n.rest.left(now)))},
                   {"why", why}});
    ++changes;
    ++node_changes;
}

SKEIN_INLINE void head::state::node_works(detail::head_node& n) {
    if (!n.rest.worked()) return;
    (void)schedule.rest(n.place(), {});
    ++changes;
    ++node_changes;
}

/// Those whose time is over are tried again; of the others bundles without a worker go elsewhere.
SKEIN_INLINE void head::state::end_rests() {
    const auto now = on_loop.now();
    for (auto& [number, n] : nodes) {
        if (n->rest.left(now) != duration(0)) schedule.move_bundles(n->place());
        if (!n->rest.is_over(now)) continue;
        (void)schedule.rest(n->place(), {});
        ++changes;
        ++node_changes;
    }
}

/// Its node could not start it for a reason of its own: that was no attempt. Once each node may
/// have been tried it waits, 1, 2, 4, up to 60 seconds: what looks like the node's fault may be its
/// own, and each try costs the others a node for a second.
SKEIN_INLINE void head::state::put_off(detail::submitted_job& job, const std::string& why) {
    if (++job.not_started <= nodes.size()) return begin_again(job);
    const auto waits_since = job.pending_since;
    const auto tries = std::min<std::uint64_t>(job.not_started - nodes.size() - 1, 6);
    const auto pause = std::min<std::uint64_t>(std::uint64_t{1} << tries, 60);
    job.retry_at = deadline_after(on_loop.now(), std::chrono::seconds(pause));
    jobs.change(job, job_state::pending, fmt::format("{} could not start it: {}", job.node, why));
    job.pending_since = waits_since;
    jobs.note(job);
}

/// The same attempt: none of it has begun.
SKEIN_INLINE void head::state::begin_again(detail::submitted_job& job) {
    const auto waits_since = job.pending_since;
    --job.attempt;
    begin_attempt(job);
    job.pending_since = waits_since;
    jobs.note(job);
}

} // namespace skein::cluster
