// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of rt/runtime.hpp: how a call gets to its worker, and how it is taken back.

#include <skein/core/loop.hpp>
#include <skein/rt/detail/runtime_state.hpp>

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace skein::rt {

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
    if (raw.kind == detail::call_kind::task && state_->upstream == nullptr)
        at = state_->dispatch.begin_task(to.room, raw, state_->id_of(raw)).link;
    else if (raw.kind == detail::call_kind::create && state_->upstream == nullptr)
        state_->dispatch.begin_actor(to.room);
    credits::take(*state_, to, raw, raw.body.size());
    detail::stamp_deadline(raw, raw.body);
    // Only a call that may have to run again keeps its arguments: after its worker's death, or
    // elsewhere when it was taken back; and one that was not sent.
    const bool keep = raw.kind == detail::call_kind::task && state_->upstream == nullptr &&
                      (raw.retries_left > 0 || at->page);
    if (raw.kind == detail::call_kind::create && state_->upstream == nullptr)
        state_->actors.remember_plan(raw);
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
    // What a link that has ended does not take stays behind what it has taken, wherever that goes.
    const auto is_left = [&] {
        call.order = ++to.sent;
        return false;
    };
    if (!to.is_open()) return is_left();
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
        if (e.code() != errc::too_large) return is_left(); // closed or reset
        const auto held = free_slot(call.slot);
        account(to, call);
        (void)credits::give(*state_, to, call);
        if (call.kind == detail::call_kind::create && state_->upstream == nullptr)
            state_->actors.has_left(to);
        call.fail({e, nullptr});
    }
    return true;
}

/// A task has left its worker.
SKEIN_INLINE void runtime::account(peer& ran_at, const detail::call_base& call) {
    if (state_->upstream != nullptr || call.kind != detail::call_kind::task) return;
    auto& tasks = ran_at.tasks;
    if (!tasks.empty() && tasks.front().order == call.order) tasks.pop_front();
    state_->dispatch.end_task(ran_at.room, call, state_->id_of(call));
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
    auto& dispatch = state_->dispatch;
    if (!dispatch.wants_more(idle.room) || state_->closing) return;
    peer* most = nullptr;
    for (const auto& l : state_->links) {
        const auto& counted = l->room.for_whom();
        if (&counted != &idle.room && counted.busy > counted.capacity &&
            (most == nullptr || l->tasks.size() > most->tasks.size()))
            most = l.get();
    }
    if (most == nullptr) return;
    dispatch.book().release_unused(idle.room);
    std::vector<counted_ptr<detail::call_base>> moved;
    bool has_more = true; // leases to be had
    const std::size_t half = (most->prune_tasks() + 1) / 2;
    while (!most->tasks.empty() &&
           moved.size() < half) { // the last ones: the first ones are about to run
        const auto last = most->tasks.back();
        most->tasks.pop_back();
        const auto index = static_cast<std::uint32_t>(last.slot.value());
        const auto& held = state_->slots[index];
        if (!held.call || held.call->slot != last.slot || held.call->on != most) continue; // done
        const counted_ptr<detail::call_base> call(held.call.get());
        if (call->cpus > idle.room.capacity || call->alone != 0 || call->is_done() ||
            (call->cpus == 0 && !credits::has(*state_, idle.room.credit)))
            continue;
        using detail::move_answer;
        const auto answer = dispatch.may_move(idle.room, *call, has_more);
        if (answer == move_answer::stays) continue;
        if (answer == move_answer::over) most->tasks.push_back(last);
        if (answer == move_answer::over || !take_back(*call)) break; // or it is there already
        moved.push_back(call);
    }
    while (!moved.empty()) {
        send(idle, std::move(moved.back()));
        moved.pop_back();
    }
    if (dispatch.waits()) pump_leases();
}

} // namespace skein::rt
