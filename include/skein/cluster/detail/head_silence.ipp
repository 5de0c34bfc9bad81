// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of cluster/head.hpp: nodes that are not heard.
//
// An agent that dies is told by its kernel: its connection is closed, and the node is lost with what
// it ran. Silence says nothing: a host that is busy, paused or cut off for a while still runs what it
// ran. So a silent node keeps its leases until lost_after, also over the end of its link, gets
// nothing new meanwhile, and is believed when it comes back.

#include <skein/cluster/detail/head_state.hpp>
#include <skein/core/log.hpp>
#include <skein/core/loop.hpp>

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace skein::cluster {

/// Also while its link, which has ended, is put away.
SKEIN_INLINE bool head::state::is_silent(const detail::head_node& n) {
    const auto& below = n.session->below;
    return below == nullptr || !below->is_open() || below->is_suspect();
}

SKEIN_INLINE std::uint64_t head::state::lost_after_ms() const {
    return static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::milliseconds>(duration(how.lost_after)).count());
}

/// A space server that nobody saw end has ended: agents without a head wait as long as this one.
SKEIN_INLINE duration head::state::space_fence() const {
    return std::max<duration>(how.times.space_fence,
                              duration(how.lost_after) + std::chrono::seconds(15));
}

/// Its connection was closed, and it has not dialled again: as the kernel of a process does that has
/// ended.
SKEIN_INLINE bool head::state::has_died(const detail::head_node& n) {
    const auto& below = n.session->below;
    return below != nullptr && below->last_break() && below->last_break()->code() == errc::reset;
}

SKEIN_INLINE duration head::state::patience_with(const detail::head_node& n) const {
    return has_died(n) ? std::min<duration>(how.node_grace, how.lost_after)
                       : duration(how.lost_after);
}

/// "node n1 is silent for 7 s; given up at 30 s"
SKEIN_INLINE std::string head::state::silence_text(const detail::head_node& n) const {
    return fmt::format("node {} is {} for {:.0f} s; given up at {:.3g} s", n.room->name,
                       has_died(n) ? "away" : "silent", to_seconds(n.silence.length(on_loop.now())),
                       to_seconds(patience_with(n)));
}

SKEIN_INLINE void head::state::look_at_silence() {
    const auto now = on_loop.now();
    const auto late = now - std::exchange(looked_at, now);
    std::vector<detail::head_node*> lost;
    for (auto& [number, n] : nodes) {
        const bool was = n->silence.is_there();
        if (late > duration(how.look_every) + duration(how.times.suspect_after))
            n->silence.forgive(late - duration(how.look_every));
        n->silence.look(is_silent(*n), now, how.times.suspect_after);
        (void)leases.schedule().drain(n->room->place(), n->room->draining || n->silence.is_there());
        if (was != n->silence.is_there()) {
            ++changes;
            ++node_changes;
        }
        if (n->silence.is_there() && n->silence.length(now) >= duration(how.lost_after))
            lost.push_back(n.get());
    }
    for (auto* n : lost)
        lose(*n, fmt::format("it was silent for {:.3g} s", to_seconds(n->silence.length(now))),
             false, !has_died(*n));
}

/// It may run what it ran: the next attempts wait.
SKEIN_INLINE void head::state::leave_attempts(const detail::head_node& n) {
    const auto heard_at = on_loop.now() - n.silence.length(on_loop.now());
    given_up.is_gone(n.incarnation, heard_at);
    for (const auto& [name, l] : n.room->leases) {
        const auto& driver = *l->of;
        const auto job = jobs.find(driver.attempt_of);
        if (job == nullptr) continue;
        const auto length = runner.fence(n.alone_ms, job->what);
        given_up.leave(name.driver,
                       {n.incarnation, n.room->name, length, deadline_after(heard_at, length)});
    }
}

/// It has said all that it holds: there is nothing more to wait for. Of its name there is one agent,
/// so that an attempt of the one before has ended with that.
SKEIN_INLINE bool head::state::is_expected_of(const detail::lease& l,
                                              const detail::head_node& n) const {
    if (l.expected_node == n.incarnation) return true;
    const auto job = jobs.find(l.of->attempt_of);
    return l.expected_node == unknown_node && job != nullptr &&
           (job->placed_on == n.incarnation || job->node == n.room->name);
}

/// An order, or the news of an end, was lost with a link or with a head.
SKEIN_INLINE void head::state::end_lost(detail::lease& l, const detail::head_node& n) {
    const auto job = jobs.find(l.of->attempt_of);
    if (job == nullptr)
        return leases.end(l, true, fmt::format("node {} does not have it any more", n.room->name));
    const bool is_same = l.at == n.room || job->placed_on == n.incarnation;
    // An agent remembers what it has started, and how that ended, longer than a link is away.
    if (is_same && job->state == job_state::starting) l.is_ordered = false;
    leases.end(l, true,
               !is_same ? fmt::format("node {} was lost: its agent was started again", n.room->name)
               : !l.is_ordered
                   ? fmt::format("the order to start it did not reach node {}", n.room->name)
                   : fmt::format("node {} does not have it any more", n.room->name));
}

/// The link of a node has ended.
SKEIN_INLINE void head::state::link_ended(detail::head_node& n, bool has_left) {
    const auto& why = n.session->below->failure();
    if (has_left || !why) return lose(n, "it left the cluster", true);
    const bool is_away = n.session->below->ending() == net::link_end::deadline && !has_died(n);
    if (!is_away) return lose(n, why->what(), false, !has_died(n));
    logging::at(how.news, "head", "node is silent; it is waited for",
                {{"node", n.room->name},
                 {"since", n.silence.length(on_loop.now())},
                 {"until", duration(how.lost_after)}});
}

} // namespace skein::cluster
