// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of rt/runtime.hpp: which of several workers with room a task goes to. A plain
// function holds its worker's loop until it returns. So it goes to a worker with nothing to do;
// then to one whose loop nobody needs: neither an actor, nor a coroutine that waits for its calls
// or for a timer.
//
// Where every worker that has room is waited in, plain tasks of that one run in a second process
// beside it, its `aside`, which is started for the first of them: whoever waits there hears of
// answers, deadlines and timers, and can end what he has called. For the lines, and for who counts
// cores, both processes are one worker.

#include <skein/rt/detail/runtime_state.hpp>

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

namespace skein::rt {

namespace detail {

/// Lists of workers are searched so far for the one with the least to do.
inline constexpr int most_looked_at = 8;

[[nodiscard]] inline bool is_before(const peer& a, const peer& b) noexcept {
    return std::pair(lease_state::is_needed(a), a.busy) <
           std::pair(lease_state::is_needed(b), b.busy);
}

/// Whether a worker with nothing to do is worth looking for, where the task could also go
/// elsewhere.
[[nodiscard]] inline bool may_be_free(const lease_state& of, const lease_line& line) noexcept {
    return !of.free.empty() && !line.need->spreads && line.none_free_at != of.state + of.freed;
}

/// What a worker has to do has changed.
SKEIN_INLINE void lease_state::note_use(peer& at) noexcept {
    const bool is_free = at.busy == 0 && !is_needed(at) && at.up && !at.demand &&
                         !at.is_space_client && !at.is_aside && workers.contains(place_of(at));
    if (is_free == at.is_linked()) return;
    if (!is_free) return at.unlink();
    free.push_back(at);
    ++freed;
}

SKEIN_INLINE void lease_state::count_coroutine(peer& at, const call_base& call, int by) noexcept {
    if (call.kind != call_kind::task || call.fn == nullptr || !call.fn->is_coroutine) return;
    if (by > 0)
        ++at.coroutines;
    else
        at.coroutines -= std::min<std::size_t>(at.coroutines, 1);
    note_use(at);
}

/// A worker with nothing to do, over a lease that the line has there or gets. nullptr: there is
/// none.
SKEIN_INLINE peer* lease_state::pick_free(lease_line& line) {
    if (!may_be_free(*this, line)) return nullptr;
    const bool is_last_turn = others_wait(line);
    std::array<peer*, most_looked_at> found{};
    std::size_t n = 0;
    int seen = 0;
    free.for_each_while([&](peer& at) {
        const auto* const share = share_of(at, line);
        const bool has_turn = !is_last_turn || (share != nullptr && share->turn > 0);
        if (!at.retiring && !at.lent && at.alone == nullptr && at.capacity >= line.cpus &&
            has_turn && (line.need->is_anywhere() || has_label(at, line.need->label)))
            found[n++] = &at;
        return ++seen < most_looked_at;
    });
    const auto has_lease = [&](const peer& at) {
        const auto* const share = share_of(at, line);
        return share != nullptr && share->out < share->leases.size();
    };
    for (std::size_t i = 0; i < n; ++i) // what the line has asked for before may have been that one
        if (has_lease(*found[i]) || lease_on(*found[i], line) || has_lease(*found[i]))
            return found[i];
    for (; n == 0 && seen > 0 && !free.empty(); --seen) // the next ones another time
        free.push_back(free.pop_front());
    line.none_free_at = state + freed;
    return nullptr;
}

/// Over a lease that has no task.
SKEIN_INLINE peer* lease_state::choose(lease_line& line) {
    auto* const to = pick(line, lease_line::unused);
    if (to == nullptr || !is_needed(*to)) return to;
    auto* const better = pick_free(line);
    return better != nullptr ? better : to;
}

/// The least busy of the workers that a line's next task may go to now.
SKEIN_INLINE peer* lease_state::pick(lease_line& line, lease_line::list where) const {
    const bool is_last_turn = others_wait(line) && line.by != lease_line::service::own;
    peer* best = nullptr;
    int seen = 0;
    line.with[where].for_each_while([&](const lease_share& share) {
        auto* const at = share.at;
        const bool is_open =
            at->up && !at->retiring && !at->lent && at->alone == nullptr &&
            (share.turn > 0 || !is_last_turn) &&
            (at->unleased == 0 || at->busy + line.cpus <= at->capacity * at->window);
        if (is_open && (best == nullptr || is_before(*at, *best))) best = at;
        return ++seen < most_looked_at;
    });
    for (; best == nullptr && seen > 0; --seen) // the next ones another time
        line.with[where].push_back(line.with[where].pop_front());
    return best;
}

/// Where a task may go at once, past no other one: its demand is the only one, nothing waits, and
/// its line has what it can have. nullptr: it stands in line.
SKEIN_INLINE peer* lease_state::straight_to(const call_base& call) {
    if (lines.size() != 1 || waiting > 0 || asking > 0 || pumping || call.alone != 0 ||
        !suspects.empty())
        return nullptr;
    auto& [demand, line] = *lines.begin();
    if (demand != call.demand || is_changed || line.by != lease_line::service::shared)
        return nullptr;
    auto* to = pick(line, lease_line::unused);
    if (to == nullptr && line.full_at != state) return nullptr; // there may be more leases
    if (to != nullptr && is_needed(*to) && may_be_free(*this, line)) return nullptr;
    if (to == nullptr) to = pick(line, lease_line::beside);
    if (to == nullptr) to = pick(line, lease_line::ahead);
    if (to != nullptr && (needs_aside(*to, call) || awaits_others(*to, call)))
        return nullptr; // somebody has to come first
    if (to != nullptr) ++gone;
    return to;
}

// ---- a second process beside a worker ----------------------------------------------------------

/// It would make somebody wait there who has made calls, and is to hear of them.
SKEIN_INLINE bool lease_state::needs_aside(const peer& at, const call_base& call) const noexcept {
    if (call.kind != call_kind::task || call.cpus == 0 || call.fn == nullptr ||
        call.fn->is_coroutine || at.demand || source == nullptr)
        return false;
    return at.parents > 0 || (!at.forwarded.empty() && is_needed(at));
}

/// It would make an actor or a coroutine wait there, and workers are about to come: for one of
/// them.
SKEIN_INLINE bool lease_state::awaits_others(const peer& at, const call_base& call) const noexcept {
    return workers.size() < expected && !at.demand && is_needed(at) && call.fn != nullptr &&
           call.kind == call_kind::task && !call.fn->is_coroutine && call.cpus > 0;
}

/// Whether a plain task can go there now: not before there is a process in which nobody waits, if
/// one can be had.
SKEIN_INLINE bool lease_state::may_go_to(peer& at, const call_base& call) {
    if (awaits_others(at, call)) return false;
    if (!needs_aside(at, call)) return true;
    if (at.aside != nullptr) return at.aside->takes_tasks();
    if (at.aside_is == peer::aside_state::none)
        at.aside_is =
            source->want_beside(*at.wire) ? peer::aside_state::asked : peer::aside_state::refused;
    return at.aside_is == peer::aside_state::refused;
}

/// The second process has come. False: there is no use for it any more.
SKEIN_INLINE bool lease_state::stand_beside(peer& second, const peers& links,
                                            const net::channel& of) {
    second.is_aside = true;
    for (const auto& l : links) {
        if (l->wire.get() != &of || !l->up || l->aside != nullptr) continue;
        l->aside = &second;
        l->aside_is = peer::aside_state::none;
        second.principal = l.get();
        return true;
    }
    return false;
}

/// One of the two has ended. The second one leaves when its tasks have ended; another may come for
/// the first.
SKEIN_INLINE void lease_state::part(peer& one) noexcept {
    if (auto* const first = std::exchange(one.principal, nullptr)) {
        first->aside = nullptr;
        first->aside_is = peer::aside_state::none;
    }
    if (auto* const second = std::exchange(one.aside, nullptr)) {
        second->principal = nullptr;
        second->spent = true;
        second->ended.set();
    }
}

} // namespace detail

SKEIN_INLINE void runtime::suspect(const net::channel& worker, bool on) {
    auto& leases = state_->leases;
    for (const auto& l : state_->links) {
        if (l->wire.get() != &worker || !l->up || l->suspected == on || !l->ended_for.empty())
            continue;
        l->suspected = on;
        if (!l->demand && !l->is_aside) leases.retire(*l, on);
        std::vector<counted_ptr<detail::call_base>> moved;
        for (auto& s : state_->slots)
            if (on && s.call && s.call->on == l.get() && !s.call->is_done() &&
                s.call->kind == detail::call_kind::task)
                moved.emplace_back(s.call.get());
        std::erase_if(moved, [&](const auto& call) { return !take_back(*call); });
        std::sort(moved.begin(), moved.end(),
                  [](const auto& a, const auto& b) { return a->order < b->order; });
        for (auto& call : moved) place(std::move(call));
        break;
    }
    pump();
}

SKEIN_INLINE void runtime::give_up_worker(const net::channel& worker, std::string why) {
    for (const auto& l : state_->links)
        if (l->wire.get() == &worker && l->up && l->ended_for.empty()) l->ended_for = why;
}

/// Driver: no second process comes to this worker: its tasks run in the one that there is.
SKEIN_INLINE void runtime::refuse_aside(const net::channel& worker) {
    for (const auto& l : state_->links)
        if (l->wire.get() == &worker && l->aside == nullptr)
            l->aside_is = peer::aside_state::refused;
    pump();
}

} // namespace skein::rt
