// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of cluster/detail/agent_drain.hpp.

#include <skein/cluster/detail/head_link.hpp>
#include <skein/core/log.hpp>
#include <skein/core/loop.hpp>

#include <algorithm>
#include <chrono>
#include <utility>

namespace skein::cluster::detail {

/// Milliseconds from now on; no_drain_deadline: for ever.
[[nodiscard]] inline std::int64_t ms_until(time_point until, time_point now) {
    if (until == time_point::max()) return no_drain_deadline;
    return std::chrono::duration_cast<std::chrono::milliseconds>(std::max(until - now, duration(0)))
        .count();
}
/// The moment that is so far away.
[[nodiscard]] inline time_point moment_after(time_point now, std::int64_t within_ms) {
    return within_ms < 0
               ? time_point::max()
               : deadline_after(now,
                                std::chrono::milliseconds(std::min(within_ms, longest_drain_ms)));
}

SKEIN_INLINE void agent_drain::hear(const node_drains& m, time_point now) {
    said_ = m;
    empty_by_ = moment_after(now, m.on ? m.within_ms : no_drain_deadline);
    if (!m.on) notice_.reset();
}

SKEIN_INLINE void agent_drain::leave(const node_leaves& m, time_point now) {
    notice_ = m;
    gone_by_ = moment_after(now, m.within_ms);
}

SKEIN_INLINE void agent_drain::add_to(node_hello& h, time_point now) const {
    h.draining = said_.on && !notice_; // which ends with this agent
    h.drain_left_ms = ms_until(empty_by_, now);
    h.drain_force = said_.force;
    h.leaves = notice_;
    if (h.leaves) h.leaves->within_ms = ms_until(gone_by_, now);
}

SKEIN_INLINE task<void> watch_notices(agent_drain* drain, head_link* head,
                                      unique_function<task<std::string>()>* until_notice,
                                      time_span within) {
    if (!*until_notice) co_return;
    auto waiting = (*until_notice)();
    auto why = co_await waiting;
    logging::warn("agent", "this host is about to be taken away: its node is drained",
                  {{"why", why}, {"within", duration(within)}});
    const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(duration(within)).count();
    const node_leaves told{ms, std::move(why)};
    drain->leave(told, loop::current().now());
    (void)head->tell(told);
}

} // namespace skein::cluster::detail
