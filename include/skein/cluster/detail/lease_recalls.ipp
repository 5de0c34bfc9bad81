// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of cluster/detail/lease_table.hpp: leases that are asked back.

#include <algorithm>
#include <chrono>
#include <cstddef>

namespace skein::cluster::detail {

inline constexpr std::size_t most_word_bytes = 1024; ///< of what a driver says of a lease
/// A lease that its driver keeps is asked back again after so long, where its node is to be empty
/// by a deadline.
inline constexpr duration drain_again = std::chrono::seconds(1);

SKEIN_INLINE bool lease_table::is_coming(const lease& l) const {
    return l.recalled_at != time_point{} &&
           loop_.now() < deadline_after(l.recalled_at, options_.recall_grace);
}

SKEIN_INLINE void lease_table::recall(lease& l, const std::string& why) {
    if (l.state != lease_state::granted || is_coming(l) || !events_.is_connected(l.of->incarnation))
        return;
    l.recalled_at = loop_.now();
    l.drained = l.drained || l.at->draining;
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

SKEIN_INLINE void lease_table::tell_withdrawn(const lease& l) {
    if (l.drained && l.state == lease_state::granted)
        events_.tell_driver(l.of->incarnation, lease_recalled{l.number, {}, true, no_deadline, {}});
}

SKEIN_INLINE void lease_table::answered(lease_holder& d, std::uint64_t number, leave_word word,
                                        const std::string& why) {
    const auto found = d.leases.find(number);
    if (found == d.leases.end()) return;
    auto& l = *found->second;
    l.word = word;
    l.word_why = why.substr(0, most_word_bytes);
    if (word != leave_word::stays) return;
    const auto now = loop_.now();
    const bool has_deadline =
        l.at != nullptr && l.at->draining && l.at->drained_by != time_point::max();
    l.actors_until = deadline_after(now, options_.keep_grace);
    l.keep_until =
        has_deadline ? std::min(l.actors_until, deadline_after(now, drain_again)) : l.actors_until;
    l.drained = false;
    not_recalled(l);
    pump();
}

} // namespace skein::cluster::detail
