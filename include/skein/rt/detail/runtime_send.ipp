// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of rt/runtime.hpp: which worker a call goes to, and how it gets there.

#include <skein/core/loop.hpp>
#include <skein/rt/detail/runtime_state.hpp>

#include <algorithm>
#include <tuple>
#include <utility>

#include <fmt/format.h>

namespace skein::rt {

namespace detail {

/// An actor goes where the fewest are, and of these where it need not wait for a task. A task that
/// needs no free core goes to a worker with nothing to do, then to the one with the least.
[[nodiscard]] inline bool goes_before(const call_base& call, const peer& a,
                                      const peer& b) noexcept {
    if (call.kind == call_kind::create)
        return std::tuple(a.actors, a.busy, a.coroutines) <
               std::tuple(b.actors, b.busy, b.coroutines);
    const auto load = [](const peer& l) {
        const bool is_idle = l.busy == 0 && l.credit.calls == 0 && !lease_state::is_needed(l);
        return std::tuple(!is_idle, l.busy, l.credit.calls, lease_state::is_needed(l));
    };
    return load(a) < load(b);
}

} // namespace detail

/// Where a new actor, or a task that needs no free core, goes now; nullptr: nowhere yet, or
/// (possible = false) never.
SKEIN_INLINE peer* runtime::pick(const detail::call_base& call, bool& possible) {
    peer* best = nullptr;
    std::uint32_t largest = 0;
    bool any = false;
    for (const auto& l : state_->links) {
        if (!l->up || l->demand || l->is_space_client || l->is_aside) continue;
        any = true;
        largest = std::max(largest, l->capacity);
        if (call.cpus > l->capacity || l->retiring) continue;
        if (call.kind == detail::call_kind::task && call.cpus == 0 &&
            !credits::has(*state_, l->credit))
            continue;
        if (best == nullptr || detail::goes_before(call, *l, *best)) best = l.get();
    }
    possible = !any || call.cpus <= largest;
    // An actor stays where it is put: rather wait for a worker that is about to come.
    if (best != nullptr && call.kind == detail::call_kind::create && best->actors > 0 &&
        workers() < state_->expected)
        return nullptr;
    return best;
}

SKEIN_INLINE void runtime::pump() {
    pump(detail::call_kind::create);
    pump(detail::call_kind::task);
    auto& leases = state_->leases;
    if (std::exchange(leases.is_thinned, false) || leases.waits()) pump_leases();
}

SKEIN_INLINE void runtime::pump(detail::call_kind which) {
    auto& line = which == detail::call_kind::create ? state_->creations : state_->queue;
    while (!line.empty()) {
        auto& front = line.front();
        if (front->is_done()) {
            line.pop_front();
            continue;
        }
        bool possible = true;
        auto* where = pick(*front, possible);
        if (where == nullptr && possible) return;
        if (where != nullptr && !state_->leases.may_go_to(*where, *front)) return;
        auto call = std::move(front);
        line.pop_front();
        if (where == nullptr) {
            refuse_impossible(*call);
        } else {
            send(*where, std::move(call));
        }
    }
}

SKEIN_INLINE slot_id runtime::take_slot(counted_ptr<detail::call_base> call) {
    auto& of = *state_;
    if (of.free.empty()) [[unlikely]]
        of.add_slot();
    const auto index = of.free.back();
    of.free.pop_back();
    auto& slot = of.slots[index];
    slot.call = std::move(call);
    return slot_id(std::uint64_t{slot.generation} << 32 | index);
}

/// The call of an id, taken out of its slot; nothing if it is not (or no longer) known.
SKEIN_INLINE counted_ptr<detail::call_base> runtime::free_slot(slot_id id) {
    const auto index = static_cast<std::uint32_t>(id.value());
    if (index >= state_->slots.size() || state_->slots[index].generation != id.value() >> 32 ||
        !state_->slots[index].call)
        return {};
    return state_->take_out(index);
}

namespace detail {

/// What is left of the time when the call leaves, not when it was made.
SKEIN_INLINE void stamp_deadline(const call_base& call, mut_byte_span body) {
    if (!call.rare || call.rare->until == time_point{}) return;
    const auto left = call.rare->until - loop::current().exact_now();
    const std::size_t at = call_head::left_at(call.kind);
    if (body.size() < at + sizeof(std::int64_t)) return;
    store_le(body.data() + at, static_cast<std::uint64_t>(std::max<std::int64_t>(left.count(), 0)));
}

} // namespace detail

SKEIN_INLINE void runtime::send(peer& to, counted_ptr<detail::call_base> call) {
    auto& raw = *call;
    raw.slot = take_slot(std::move(call));
    peer* at = &to; // the process in which it runs
    if (raw.kind == detail::call_kind::task && state_->upstream == nullptr) {
        if (to.aside != nullptr && to.aside->takes_tasks() && state_->leases.needs_aside(to, raw))
            at = to.aside;
        state_->leases.count_coroutine(to, raw, 1);
        if (to.busy == 0) {
            to.mark = loop::current().now();
            to.finished = 0;
        }
        state_->leases.occupy(to, to.busy + raw.cpus);
        if (raw.alone != 0 && raw.cpus > 0) to.alone = &raw;
        state_->leases.sent(to, raw);
    } else if (raw.kind == detail::call_kind::create && state_->upstream == nullptr) {
        ++to.actors;
        state_->leases.note_use(to);
        if (to.demand) state_->leases.settle_in(to);
    }
    credits::take(*state_, to, raw, raw.body.size());
    detail::stamp_deadline(raw, raw.body);
    // Only a call that may have to run again keeps its arguments: after its worker's death, or
    // elsewhere when it was taken back; and one that was not sent.
    const bool keep = raw.kind == detail::call_kind::task && state_->upstream == nullptr &&
                      (raw.retries_left > 0 || at->page);
    if (raw.kind == detail::call_kind::create && state_->upstream == nullptr) remember_plan(raw);
    if (keep || keeps_body(raw)) {
        (void)transmit(*at, raw, raw.body, nullptr);
    } else {
        auto body = std::exchange(raw.body, {});
        if (!transmit(*at, raw, body, &body)) raw.body = std::move(body);
    }
}

/// False: the link has just broken; the call stays in its slot, as one that did not run, until that
/// is settled.
SKEIN_INLINE bool runtime::transmit(peer& to, detail::call_base& call, byte_span body,
                                    byte_buffer* owned) {
    call.on = &to;
    call.state = detail::phase::queued;
    if (!to.is_open()) return false;
    try {
        if (owned != nullptr && owned->size() >= limit::inline_bytes) {
            net::frame f;
            f.kind = detail::message_call;
            f.id = call.slot.value();
            f.body = std::move(*owned);
            to.send(std::move(f));
        } else {
            to.send(detail::message_call, 0, call.slot.value(), body);
        }
        call.state = detail::phase::sent;
        if ((to.role != detail::peer_role::program || state_->home != nullptr) && !call.direct)
            direct_call_began(call);
        call.order = ++to.sent;
        if (to.page && call.kind == detail::call_kind::task && state_->upstream == nullptr)
            to.remember_task({call.slot, call.order});
    } catch (const error& e) {
        if (e.code() != errc::too_large) return false; // closed or reset
        const auto held = free_slot(call.slot);
        account(to, call);
        (void)credits::give(*state_, to, call);
        if (call.kind == detail::call_kind::create && state_->upstream == nullptr) actor_left(to);
        call.fail({e, nullptr});
    }
    return true;
}

/// A task has left its worker: its cores are free, and the worker's pace is known better.
SKEIN_INLINE void runtime::account(peer& ran_at, const detail::call_base& call) {
    if (state_->upstream != nullptr || call.kind != detail::call_kind::task) return;
    auto& tasks = ran_at.tasks;
    if (!tasks.empty() && tasks.front().order == call.order) tasks.pop_front();
    peer& from = ran_at.principal != nullptr ? *ran_at.principal : ran_at;
    state_->leases.count_coroutine(from, call, -1);
    if (from.alone == &call) from.alone = nullptr;
    if (call.cpus == 0) return;
    auto& leases = state_->leases;
    const bool had_cores = leases.forget_parent(call);
    if (had_cores) leases.occupy(from, from.busy - std::min<std::uint32_t>(from.busy, call.cpus));
    const auto now = loop::current().now();
    ++from.finished;
    if (now > from.mark) {
        const double each = to_seconds(now - from.mark) / from.finished;
        from.service = each < from.service ? each : (from.service + each) / 2;
        from.window = static_cast<std::uint32_t>(std::clamp(1e-3 / from.service, 1.0, 1024.0));
        from.mark = now;
        from.finished = 0;
    }
    leases.settled(from, call, had_cores);
    if (from.demand) tell_demand(leases.line_of(call.demand));
}

/// True: a call that was sent has not begun and never will; it is out of its slot and
/// counted at its worker no more.
SKEIN_INLINE bool runtime::take_back(detail::call_base& call) {
    if (state_->upstream != nullptr || call.state != detail::phase::sent || call.on == nullptr ||
        call.kind == detail::call_kind::create || !call.on->page.take_back(call.order))
        return false;
    const auto held = free_slot(call.slot);
    account(*call.on, call);
    credits::keep(call);
    call.on = nullptr;
    call.state = detail::phase::queued;
    return true;
}

/// A worker has nothing to do and nothing that waits may go there: it gets half of what waits at
/// the one where most does. The guess how long tasks take was wrong then, or one of them is much
/// longer than the others.
SKEIN_INLINE void runtime::feed(peer& idle) {
    if (state_->leases.crowded == 0 || !idle.up || idle.retiring || idle.lent || idle.demand ||
        idle.is_space_client || idle.is_aside || idle.busy != 0 || state_->closing)
        return;
    auto& leases = state_->leases;
    peer* most = nullptr;
    for (const auto& l : state_->links) {
        const peer& counted = l->principal != nullptr ? *l->principal : *l;
        if (&counted != &idle && counted.busy > counted.capacity &&
            (most == nullptr || l->tasks.size() > most->tasks.size()))
            most = l.get();
    }
    if (most == nullptr) return;
    for (auto& share : idle.shares) leases.release_unused(*share);
    std::vector<counted_ptr<detail::call_base>> moved;
    bool more = true; // leases to be had
    const std::size_t half = (most->prune_tasks() + 1) / 2;
    while (!most->tasks.empty() &&
           moved.size() < half) { // the last ones: the first ones are about to run
        const auto last = most->tasks.back();
        most->tasks.pop_back();
        const auto index = static_cast<std::uint32_t>(last.slot.value());
        const auto& held = state_->slots[index];
        if (!held.call || held.call->slot != last.slot || held.call->on != most) continue; // done
        const counted_ptr<detail::call_base> call(held.call.get());
        if (call->cpus > idle.capacity || call->alone != 0 || call->is_done() ||
            (call->cpus == 0 && !credits::has(*state_, idle.credit)))
            continue;
        if (detail::lease_state::is_leased(*call)) {
            auto& line = leases.line_of(call->demand);
            if (line.by != detail::lease_line::service::shared || !line.need->is_anywhere())
                continue;
            more = more && leases.lease_on(idle, line);
            const auto* share = leases.share_of(idle, line);
            if (share == nullptr || share->leases.empty()) { // it is kept for another
                most->tasks.push_back(last);
                break;
            }
        }
        if (!take_back(*call)) break; // the worker is there already
        moved.push_back(call);
    }
    while (!moved.empty()) {
        send(idle, std::move(moved.back()));
        moved.pop_back();
    }
    if (leases.waits()) pump_leases();
}

} // namespace skein::rt
