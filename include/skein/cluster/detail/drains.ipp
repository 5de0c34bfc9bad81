// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of cluster/detail/drains.hpp.

#include <skein/cluster/detail/job_book.hpp>
#include <skein/core/error.hpp>

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace skein::cluster::detail {

/// Ranks that have no room elsewhere are asked to save so long before they are ended by force.
inline constexpr duration ranks_save_within = std::chrono::seconds(10);

[[nodiscard]] inline std::string seconds_text(duration d) {
    return fmt::format("{:.3g} s", std::max(to_seconds(d), 0.0));
}

SKEIN_INLINE drains::drains(loop& on, const parts& below, const lease_events& above,
                            drain_options options)
    : loop_(on), below_(below), above_(above), options_(options) {
    below_.leases.no_room_for = [this](const lease& rank) { return no_room_for(rank); };
}

// ---- by when ------------------------------------------------------------------------------------

SKEIN_INLINE void drains::remember() {
    const auto wall = unix_ms(loop_);
    for (const auto& gone : below_.memory.missing()) { // all are, at first
        const auto* const n = below_.memory.find_node(gone.name);
        if (n == nullptr || !n->draining || n->drained_by == 0) continue;
        const auto left = std::clamp<std::int64_t>(n->drained_by - wall, 0,
                                                   std::min(longest_drain_ms, n->drain_ms));
        term t;
        t.asked = t.until = deadline_after(loop_.now(), std::chrono::milliseconds(left));
        t.force = n->drain_force;
        terms_.insert_or_assign(gone.name, t);
    }
}

SKEIN_INLINE const drains::term* drains::term_of(const std::string& node) const {
    const auto found = terms_.find(node);
    return found == terms_.end() ? nullptr : &found->second;
}

SKEIN_INLINE void drains::set_term(const std::string& node, const ask_drain& asked) {
    term t;
    if (const auto* const known = term_of(node); known != nullptr && known->of != 0) {
        t.of = known->of; // a machine that is taken away is so in any case
        t.noticed = known->noticed;
    }
    const bool has_deadline = asked.on && !asked.forget && asked.within_ms >= 0;
    if (!asked.on || asked.forget || (!has_deadline && t.of == 0)) {
        terms_.erase(node);
        return;
    }
    const auto within = std::min(asked.within_ms, longest_drain_ms);
    if (has_deadline) t.asked = deadline_after(loop_.now(), std::chrono::milliseconds(within));
    t.force = has_deadline && asked.force;
    t.settle();
    terms_.insert_or_assign(node, t);
}

SKEIN_INLINE drain_reply drains::ask(const ask_drain& asked) {
    auto* const n = below_.nodes.find(asked.node);
    if (asked.look) return reply_of(asked.node);
    const bool is_known = n != nullptr || below_.memory.find_node(asked.node) != nullptr;
    if (is_known && !(n != nullptr && asked.forget)) set_term(asked.node, asked);
    if (n != nullptr && !asked.forget) {
        const auto* const by = term_of(asked.node);
        n->room->drained_by = by != nullptr ? by->until : time_point::max();
        for (const auto& [name, l] : n->room->leases) l->word = leave_word::none;
    }
    no_room_.clear();
    const auto done = below_.nodes.drain(asked);
    if (asked.forget) return done;
    look();
    auto out = reply_of(asked.node);
    out.missing = done.missing;
    return out;
}

SKEIN_INLINE void drains::on_notice(known_node& n, const node_leaves& notice) {
    const auto* const known = term_of(n.name());
    if (known != nullptr && known->of == n.incarnation) return; // said again
    ask_drain asked;
    asked.node = n.name();
    term t;
    if (notice.within_ms >= 0)
        t.noticed = deadline_after(
            loop_.now(), std::chrono::milliseconds(std::min(notice.within_ms, longest_drain_ms)));
    if (known != nullptr) t.asked = known->asked;
    t.of = n.incarnation;
    t.force = known != nullptr && known->force;
    t.settle();
    terms_.insert_or_assign(n.name(), t);
    n.room->drained_by = t.until;
    logging::warn("head", "a node is about to be taken away",
                  {{"node", n.name()}, {"why", notice.why.substr(0, 1024)}});
    no_room_.clear();
    (void)below_.nodes.drain(asked, false);
    look();
}

SKEIN_INLINE void drains::on_hello(known_node& n, const node_hello& h) {
    if (h.leaves) on_notice(n, *h.leaves);
    if (below_.memory.has_log() || !n.room->draining || h.drain_left_ms < 0 ||
        term_of(n.name()) != nullptr)
        return;
    ask_drain asked;
    asked.within_ms = h.drain_left_ms;
    asked.force = h.drain_force;
    set_term(n.name(), asked);
}

SKEIN_INLINE node_drains drains::message_for(const lease_node& n) const {
    node_drains out;
    out.on = n.draining;
    const auto* const by = term_of(n.name);
    if (!n.draining || by == nullptr || by->until == time_point::max()) return out;
    const auto left = std::max(by->until - loop_.now(), duration(0));
    out.within_ms = std::chrono::duration_cast<std::chrono::milliseconds>(left).count();
    out.force = by->force;
    return out;
}

// ---- what time brings ---------------------------------------------------------------------------

/// They have gone with their nodes; what somebody has asked for is of the next one of that name.
SKEIN_INLINE void drains::forget_notices() {
    for (auto& [name, t] : terms_) {
        if (t.of == 0 || below_.nodes.find(t.of) != nullptr) continue;
        t.of = 0;
        t.noticed = time_point::max();
        t.settle();
        t.is_told = t.is_told && loop_.now() >= t.until;
    }
    std::erase_if(terms_, [](const auto& one) { return one.second.of == 0 && !one.second.asked; });
}

SKEIN_INLINE void drains::look() {
    forget_notices();
    no_room_.clear();
    plan_.reset();
    for (const auto& [number, n] : below_.nodes.all()) {
        const auto by = n->room->draining ? terms_.find(n->name()) : terms_.end();
        n->room->drained_by = by != terms_.end() ? by->second.until : time_point::max();
        if (by == terms_.end()) continue;
        look_at(by->second, *n->room);
        look_at_deadline(by->second, *n->room);
    }
    plan_.reset();
}

/// What is told to end may do so at once.
SKEIN_INLINE void drains::look_at(const term& by, lease_node& n) {
    std::vector<lease_name> entries;
    for (const auto& [name, l] : n.leases)
        if (!l->of->attempt_of.empty()) entries.push_back(name);
    for (const auto& name : entries)
        if (auto* const l = below_.leases.find(name); l != nullptr && l->at == &n)
            look_at_entry(by, *l);
}

SKEIN_INLINE duration drains::grace_of(const submitted_job& job) const {
    return job.what.grace_ms == 0
               ? options_.shutdown_grace
               : duration(std::chrono::milliseconds(std::min(job.what.grace_ms, most_grace_ms)));
}

/// It is told to end in time for its grace, and for that of what it leaves behind.
SKEIN_INLINE void drains::look_at_entry(const term& by, lease& l) {
    const auto job = below_.jobs.find(l.of->attempt_of);
    if (job == nullptr) return;
    if (job->is_stopping) {
        l.word = is_moving(*job) ? leave_word::moves : leave_word::ends;
        l.word_why = is_moving(*job) ? "it is told to end, and its next attempt begins elsewhere"
                                     : "it is being stopped";
        return;
    }
    if (!plan_) {
        plan_.emplace(below_.leases);
        for (const auto& [id, one] : below_.jobs.all()) // they have left nothing yet
            if (is_moving(*one))
                if (const auto* const own = below_.leases.find({one->lease_of, entry_lease}))
                    (void)plan_->take(*own);
    }
    const auto no_room = plan_->take(l);
    if (!no_room.empty() && !by.force) {
        l.word = leave_word::stays;
        l.word_why = no_room;
        return;
    }
    const auto now = loop_.now();
    const auto lead = 2 * grace_of(*job) + std::chrono::seconds(1);
    const bool is_due = by.until - now <= lead;
    l.word = leave_word::moves;
    l.word_why = fmt::format("it is told to end {}, and its next attempt {}",
                             is_due ? "now" : "in " + seconds_text(by.until - now - lead),
                             no_room.empty() ? "begins on another node" : "waits, for " + no_room);
    if (!is_due) return;
    logging::at(options_.news, "head", "an attempt leaves a node that drains",
                {{"job", job->what.id}, {"node", l.at->name}});
    below_.runner.move(*job, fmt::format("node {} is drained", l.at->name));
}

/// Once it is over, what is left is named; by force it is ended, also what comes back later.
SKEIN_INLINE void drains::look_at_deadline(term& by, lease_node& n) {
    if (loop_.now() < by.until) return;
    std::vector<lease_name> left;
    for (const auto& [name, l] : n.leases) left.push_back(name);
    if (by.force)
        for (const auto& name : left)
            if (auto* const l = below_.leases.find(name); l != nullptr && l->at == &n)
                end_by_force(*l);
    if (std::exchange(by.is_told, true)) return;
    if (n.leases.empty())
        logging::at(options_.news, "head", "a node that drains is empty", {{"node", n.name}});
    else
        logging::warn("head", "the time of a drain is over, and the node is not empty",
                      {{"node", n.name},
                       {"left", n.leases.size()},
                       {"one", words_of(*n.leases.begin()->second).why}});
}

/// An attempt is on its way since the time for its grace; the log has that it does not count.
SKEIN_INLINE void drains::end_by_force(lease& l) const {
    if (l.is_forced || (!l.of->attempt_of.empty() && !l.is_ordered)) return;
    if (const auto job = below_.jobs.find(l.of->attempt_of); job != nullptr && !job->is_stopping)
        return below_.runner.move(*job, fmt::format("node {} is drained by force", l.at->name));
    l.is_forced = l.at_once = true;
    below_.leases.stop(l, true);
}

SKEIN_INLINE std::string drains::no_room_for(const lease& rank) {
    const auto* const by = rank.at != nullptr ? term_of(rank.at->name) : nullptr;
    if (by == nullptr) return {};
    if (by->force && by->until - loop_.now() <= ranks_save_within) return {};
    const auto* const group = group_of(rank);
    if (group == nullptr) return {};
    const auto [at, is_new] = no_room_.try_emplace({rank.of->incarnation, group->number});
    if (is_new) at->second = no_room_without(below_.leases, *group);
    return at->second;
}

// ---- what is told -------------------------------------------------------------------------------

SKEIN_INLINE drained_lease drains::words_of(const lease& l) const {
    drained_lease out;
    out.lease = {l.of->incarnation, l.number};
    const auto& driver = *l.of;
    const auto job = below_.jobs.find(l.of->attempt_of);
    const bool is_entry = !l.of->attempt_of.empty();
    out.what = is_entry ? "entry process"
               : l.number == space_server_lease
                   ? "space server of " + below_.spaces.name_of(l.of->incarnation)
                   : fmt::format("{}-{}", l.of->has_ranks ? "rank" : "worker", l.number);
    out.of = driver.name;
    out.host = is_entry ? std::string() : driver.host;
    out.job = is_entry ? driver.attempt_of : driver.job;
    out.pid = job != nullptr ? job->pid : driver.pid;
    out.word = static_cast<std::uint8_t>(l.word);
    out.why = l.word_why;
    const auto say = [&out](leave_word word, const char* why) {
        out.word = static_cast<std::uint8_t>(word);
        out.why = why;
    };
    if (l.state == lease_state::stopping && l.word != leave_word::moves)
        say(leave_word::ends, "it is told to end");
    else if (is_entry && term_of(l.at->name) == nullptr)
        say(leave_word::stays, "it runs until it ends; with a deadline it begins again elsewhere");
    else if (l.word == leave_word::none && !is_entry && !above_.is_connected(driver.incarnation))
        say(leave_word::stays, "its driver is away, and has not answered");
    else if (l.word == leave_word::none)
        say(leave_word::none, "its driver has not answered yet");
    return out;
}

SKEIN_INLINE drain_reply drains::reply_of(const std::string& node) const {
    drain_reply out;
    out.open = below_.nodes.size().nodes;
    const auto* const by = term_of(node);
    if (by != nullptr && by->until != time_point::max())
        out.left_ms = std::chrono::duration_cast<std::chrono::milliseconds>(
                          std::max(by->until - loop_.now(), duration(0)))
                          .count();
    out.force = by != nullptr && by->force;
    const auto* const n = below_.nodes.find(node);
    if (n == nullptr) {
        const auto* const known = below_.memory.find_node(node);
        if (known == nullptr) throw not_a_node(below_.nodes, node);
        out.missing = true;
        out.draining = known->draining;
        return out;
    }
    out.draining = n->room->draining;
    out.workers = static_cast<std::uint32_t>(n->room->leases.size());
    for (const auto& [name, l] : n->room->leases) {
        if (out.leases.size() >= most_drained_listed) break;
        out.leases.push_back(words_of(*l));
    }
    return out;
}

} // namespace skein::cluster::detail
