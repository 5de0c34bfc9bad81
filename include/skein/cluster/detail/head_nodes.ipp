// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of cluster/head.hpp: links of nodes, and what becomes of jobs and leases with
// them.

#include <skein/cluster/detail/head_state.hpp>
#include <skein/cluster/detail/hello_checks.hpp>
#include <skein/core/log.hpp>
#include <skein/core/loop.hpp>

#include <string>
#include <utility>

#include <fmt/format.h>

namespace skein::cluster {

// ---- for the table of nodes ---------------------------------------------------------------------

SKEIN_INLINE bool head::state::is_silent(std::uint64_t node) const {
    const auto& below = links.at(node)->below;
    return below == nullptr || !below->is_open() || below->is_suspect();
}

SKEIN_INLINE bool head::state::has_died(std::uint64_t node) const {
    const auto& below = links.at(node)->below;
    return below != nullptr && below->last_break() && below->last_break()->code() == errc::reset;
}

SKEIN_INLINE void head::state::tell_drains(std::uint64_t node, bool on) {
    auto told = drained.message_for(*nodes.find(node)->room);
    told.on = on;
    links.at(node)->tell(told);
}

SKEIN_INLINE void head::state::tell_size() {
    const auto now = nodes.size();
    for (auto& [number, d] : drivers)
        if (d->session) d->session->tell(now);
}

// ---- their links --------------------------------------------------------------------------------

SKEIN_INLINE detail::known_node& head::state::enter(const session_ptr& s, const node_hello& h) {
    auto* known = nodes.find(s->incarnation);
    if (known != nullptr) { // its last link is over, only not for us yet
        auto& last = *links.at(s->incarnation);
        last.node = nullptr;
        if (last.below != nullptr) // nullptr: it was away
            last.below->abort(error(errc::reset, "the node has come over another link"));
        output.forget_node(known->incarnation); // it says again what it has
    } else {
        known = &nodes.enter(s->incarnation, h);
        loads.came(known->name());
    }
    links[s->incarnation] = s;
    return *known;
}

SKEIN_INLINE task<node_welcome> head::state::on_node(state* self, session_ptr s, node_hello h) {
    if (s == nullptr || s->node != nullptr || s->driver != nullptr)
        throw error(errc::malformed, "a second hello over one link");
    detail::check_version(h.version, "the node");
    detail::check_words(h);
    for (const auto& held : h.holds)
        detail::check_text("a namespace of the node", held.space, detail::most_space_bytes);
    if (h.holds.size() > self->how.most_leases || h.ended.size() > self->how.most_leases)
        throw error(errc::too_large, fmt::format("a node with {} workers", h.holds.size()));
    if (h.again) self->spaces.had_head();
    auto& n = self->enter(s, h);
    s->node = &n;
    n.alone_ms = h.alone_ms;
    self->drained.on_hello(n, h);
    if (n.room->draining != h.draining)
        s->tell(self->drained.message_for(*n.room)); // it was lost with a link
    node_welcome out;
    out.name = n.name();
    out.lost_after_ms = self->nodes.lost_after_ms();
    self->reconcile(n, h, out.stop);
    self->leases.take_groups_over();
    self->tell_size();
    self->leases.pump();
    co_return out;
}

/// The link of a node has ended.
SKEIN_INLINE void head::state::link_ended(detail::known_node& n, bool has_left) {
    const auto& below = *links.at(n.incarnation)->below;
    const auto& why = below.failure();
    const bool has_died = this->has_died(n.incarnation);
    if (has_left || !why) return lose(n, "it left the cluster", true, false);
    const bool is_away = below.ending() == net::link_end::deadline && !has_died;
    if (!is_away) return lose(n, why->what(), false, !has_died);
    logging::at(how.news, "head", "node is silent; it is waited for",
                {{"node", n.name()},
                 {"since", n.silence.length(on_loop.now())},
                 {"until", duration(how.lost_after)}});
}

SKEIN_INLINE void head::state::lose_node(std::uint64_t node, const std::string& why, bool may_run) {
    lose(*nodes.find(node), why, false, may_run);
}

SKEIN_INLINE void head::state::lose(detail::known_node& n, const std::string& why, bool left,
                                    bool may_run) {
    if (may_run)
        runner.leave(*n.room, n.alone_ms, on_loop.now() - n.silence.length(on_loop.now()));
    else
        given_up.node_died(n.incarnation);
    logging::at(how.news, "head", "node lost", {{"node", n.name()}, {"why", why}});
    const auto number = n.incarnation;
    const auto name = n.name();
    const auto session = links.at(number);
    const auto& below = session->below; // nullptr: it was away
    const bool is_seen = below != nullptr && below->ending() == net::link_end::orderly;
    for (const auto& [held, l] : n.room->leases)
        if (l->number == space_server_lease)
            spaces.over(held.driver, fmt::format("node {} was lost: {}", name, why), is_seen);
    nodes.remove(n, why, left);
    links.erase(number);
    output.forget_node(number);
    session->node = nullptr;
    if (below != nullptr) below->declare_dead(why); // should it come back, it is told so
    loads.went(name);
    tell_size();
    leases.pump();
}

// ---- what they ran ------------------------------------------------------------------------------

/// It has said all that it holds: there is nothing more to wait for. Of its name there is one agent,
/// so that an attempt of the one before has ended with that.
SKEIN_INLINE bool head::state::is_expected_of(const detail::lease& l,
                                              const detail::known_node& n) const {
    if (l.expected_node == n.incarnation) return true;
    const auto job = jobs.find(l.of->attempt_of);
    return l.expected_node == unknown_node && job != nullptr &&
           (job->placed_on == n.incarnation || job->node == n.name());
}

/// An order, or the news of an end, was lost with a link or with a head.
SKEIN_INLINE void head::state::end_lost(detail::lease& l, const detail::known_node& n) {
    const auto job = jobs.find(l.of->attempt_of);
    if (job == nullptr)
        return leases.end(l, true, fmt::format("node {} does not have it any more", n.name()));
    const bool is_same = l.at == n.room || job->placed_on == n.incarnation;
    // An agent remembers what it has started, and how that ended, longer than a link is away.
    if (is_same && job->state == job_state::starting) l.is_ordered = false;
    leases.end(l, true,
               !is_same ? fmt::format("node {} was lost: its agent was started again", n.name())
               : !l.is_ordered
                   ? fmt::format("the order to start it did not reach node {}", n.name())
                   : fmt::format("node {} does not have it any more", n.name()));
}

} // namespace skein::cluster
