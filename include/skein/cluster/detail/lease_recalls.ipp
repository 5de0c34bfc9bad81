// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of cluster/detail/lease_table.hpp: leases that are asked back.

#include <algorithm>
#include <chrono>

namespace skein::cluster::detail {

SKEIN_INLINE bool lease_table::is_coming(const lease& l) const {
    return l.recalled_at != time_point{} &&
           loop_.now() < deadline_after(l.recalled_at, options_.recall_grace);
}

SKEIN_INLINE void lease_table::recall(lease& l, const std::string& why) {
    if (l.state != lease_state::granted || is_coming(l) || !events_.is_connected(l.of->incarnation))
        return;
    l.recalled_at = loop_.now();
    l.drained = l.drained || l.at->draining;
    if (l.of->has_ranks) l.wanted_at = l.recalled_at;
    (void)schedule_.set_leaving(l.request); // others may count on its room
    lease_recalled asked;
    asked.lease = l.number;
    asked.why = why;
    if (l.at->draining && l.at->drained_by != time_point::max()) {
        const auto left = std::max(l.at->drained_by - loop_.now(), duration(0));
        asked.within_ms = std::chrono::duration_cast<std::chrono::milliseconds>(left).count();
    }
    if (l.at->draining && l.of->has_ranks && no_room_for) asked.no_room = no_room_for(l);
    l.waits_for_room = !asked.no_room.empty();
    events_.tell_driver(l.of->incarnation, asked);
}

SKEIN_INLINE void lease_table::not_recalled(lease& l) {
    l.recalled_at = {};
    if (l.state == lease_state::granted) (void)schedule_.set_leaving(l.request, false);
}

SKEIN_INLINE bool is_wanted_no_more(const lease& l, time_point now, duration again) {
    if (l.wanted_at == time_point{} || l.state != lease_state::granted || l.at->draining ||
        l.recalled_at != time_point{})
        return false;
    return now >= deadline_after(std::max(l.keep_until, deadline_after(l.wanted_at, again)), again);
}

/// Ranks are told also if another head has asked for them: who stays waits for others meanwhile.
SKEIN_INLINE void lease_table::tell_withdrawn(lease& l) {
    l.wanted_at = {};
    if ((l.drained || l.of->has_ranks) && l.state == lease_state::granted)
        events_.tell_driver(l.of->incarnation,
                            lease_recalled{l.number, {}, true, no_drain_deadline, {}});
}

} // namespace skein::cluster::detail
