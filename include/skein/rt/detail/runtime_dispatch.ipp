// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of rt/runtime.hpp: what a driver does by its dispatch (detail/dispatch.hpp),
// which decides where tasks and new actors go.

#include <skein/rt/detail/runtime_state.hpp>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace skein::rt {

/// Driver: what an actor holds.
SKEIN_INLINE void runtime::set_demand(detail::call_base& call, const actor_options& how) {
    call_options asked;
    asked.cpus = how.cpus;
    asked.gpus = how.gpus;
    asked.memory = how.memory;
    asked.resources = how.resources;
    asked.on = how.on;
    asked.env = how.env;
    asked.cwd = how.cwd;
    followers::set_demand(*this, call, asked);
}

/// Driver: an actor was declared; it holds what its constructor's call asks for.
SKEIN_INLINE void runtime::keep_demand(const detail::call_base& call) {
    auto* const entry = state_->actors.find(call.target);
    if (entry == nullptr) return;
    if (entry->plan) {
        entry->plan->demand = call.demand;
        if (call.rare) entry->plan->beside = call.rare->beside;
    }
    entry->group = state_->groups.of(call.demand);
}

/// Driver: to the end of its line.
SKEIN_INLINE void runtime::line_up(counted_ptr<detail::call_base> call) {
    if (call->kind == detail::call_kind::create && call->demand)
        if (auto* const entry = state_->actors.find(call->target)) entry->making = call;
    state_->dispatch.line_up(std::move(call));
}

/// Driver: an actor has ended, or could not be made. Its worker, if that was for it alone, ends,
/// too.
SKEIN_INLINE void runtime::actor_left(peer& at) {
    if (!state_->dispatch.end_actor(at.room)) return;
    at.ended.set();
    state_->dispatch.tell_demand(at.room.demand);
}

SKEIN_INLINE void runtime::pump() {
    dispatch_hearer hears{*this};
    state_->dispatch.pump(hears);
}

SKEIN_INLINE void runtime::pump_leases() {
    dispatch_hearer hears{*this};
    state_->dispatch.pump_leases(hears);
}

// ---- what the source of workers says -----------------------------------------------------------

SKEIN_INLINE void runtime::ask(worker_source* source) noexcept { state_->dispatch.ask(source); }

SKEIN_INLINE void runtime::refuse_demand(sched::demand_id demand, const error& why) {
    dispatch_hearer hears{*this};
    state_->dispatch.refuse_demand(demand, why, hears);
}

SKEIN_INLINE void runtime::group_placed(std::uint64_t number, bool on) {
    state_->groups.placed(number, on);
}
SKEIN_INLINE void runtime::group_refused(std::uint64_t number, const error& why) {
    state_->groups.refused(number, why);
}
SKEIN_INLINE void runtime::group_gone(std::uint64_t number) { state_->groups.gone(number); }

SKEIN_INLINE void runtime::lend(std::uint32_t cores) {
    state_->dispatch.cores().lend(cores);
    if (state_->dispatch.waits()) pump_leases();
}

SKEIN_INLINE task<void> runtime::lent_is_free() {
    auto& changed = state_->dispatch.book().lent_changed();
    while (!state_->dispatch.cores().are_free() && !state_->closing) {
        changed.reset();
        auto waiting = changed.wait();
        co_await waiting;
    }
}

SKEIN_INLINE void runtime::suspect(const net::channel& worker, bool on) {
    for (const auto& l : state_->links) {
        if (l->wire.get() != &worker || !l->up || l->room.suspected == on || !l->ended_for.empty())
            continue;
        l->room.suspected = on;
        if (!l->room.demand && !l->room.is_aside) state_->dispatch.retire(l->room, on);
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

/// Its tasks run in the process that there is.
SKEIN_INLINE void runtime::refuse_aside(const net::channel& worker) {
    state_->dispatch.asides().refuse(worker);
    pump();
}

} // namespace skein::rt
