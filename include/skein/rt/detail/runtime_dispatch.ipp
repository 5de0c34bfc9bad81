// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of rt/runtime.hpp: what tasks and new actors ask for, and what a driver does by
// its dispatch (detail/dispatch.hpp), which decides where they go.

#include <skein/rt/detail/runtime_state.hpp>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace skein::rt {

/// Driver: what a call asks for must be in its group, which it keeps from now on.
SKEIN_INLINE void runtime::join_group(detail::call_base& call) {
    const auto& demand = state_->dispatch.demands().at(call.demand);
    if (demand.group == 0) return;
    auto& bad = call.extra().bad_options;
    if (auto why = state_->groups.keep(call, demand.group)) bad = std::move(why);
    if (bad) return;
    bad =
        detail::misfit(*state_->groups.table().state_of(demand.group), demand.need, demand.bundle);
}

/// What a task needs that says where it is to run.
SKEIN_INLINE void runtime::followers::set_demand(runtime& self, detail::call_base& call,
                                                 call_options how) {
    const bool for_life = call.kind == detail::call_kind::create;
    auto& demands = self.state_->dispatch.demands();
    if (!take_location(self, call, how.on)) return;
    const auto number = detail::demand_of(demands, how, for_life);
    if (!number) {
        call.extra().bad_options = number.error();
        return;
    }
    call.demand = *number;
    if (!for_life) call.cpus = demands.at(*number).cpus;
    if (self.state_->upstream == nullptr) self.join_group(call);
}

/// Leaves of a location what a demand is numbered by: names are looked up, and what only the driver
/// knows is told to it with the call. False: there is no such place.
SKEIN_INLINE bool runtime::followers::take_location(runtime& self, detail::call_base& call,
                                                    location& on) {
    const bool is_driver = self.state_->upstream == nullptr;
    if (on.is_actor() && on.actor()) {
        follow(self, call, on.actor());
    } else if (is_driver) {
        auto why = self.state_->groups.table().resolve(on);
        if (why) call.extra().bad_options = std::move(why);
        return !call.rare || !call.rare->bad_options;
    } else if (on.is_group() && on.group() != 0) {
        if (auto why = self.state_->groups.keep(call, on.group()))
            call.extra().bad_options = std::move(why);
        call.extra().place = detail::place_of(on);
    } else if (on.is_named_group() && !on.text().empty()) {
        call.extra().place = detail::place_of(on);
    } else {
        if (on.is_anywhere()) call.extra().place = detail::place_of(on);
        return true;
    }
    on = {};
    return !call.rare->bad_options;
}

/// The call is to run where that actor is, which it keeps, as an argument would, until it is over.
SKEIN_INLINE void runtime::followers::follow(runtime& self, detail::call_base& call, actor_id of) {
    if (self.state_->upstream != nullptr)
        call.extra().place = detail::place_of(location::beside(of));
    else
        call.extra().beside = of;
    const auto queue = self.state_->actor_queues.find(of);
    if (queue == self.state_->actor_queues.end()) return;
    using held = counted_ptr<detail::actor_queue>;
    call.keep(std::make_shared<held>(queue->second));
}

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

SKEIN_INLINE void runtime::pump() { state_->dispatch.pump(state_->heard); }

SKEIN_INLINE void runtime::pump_leases() { state_->dispatch.pump_leases(state_->heard); }

// ---- what the source of workers says -----------------------------------------------------------

SKEIN_INLINE void runtime::ask(worker_source* source) noexcept { state_->dispatch.ask(source); }

SKEIN_INLINE void runtime::refuse_demand(sched::demand_id demand, const error& why) {
    state_->dispatch.refuse_demand(demand, why, state_->heard);
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

SKEIN_INLINE void runtime::set_labels(const net::channel& wire,
                                      const std::vector<std::string>& labels) {
    std::shared_ptr<peer> known;
    for (const auto& l : state_->links) {
        if (l->wire.get() != &wire || l->room.labels == labels) continue;
        state_->dispatch.book().set_labels(l->room, labels);
        known = l;
    }
    if (known) state_->actors.labels_known(*known);
    if (state_->dispatch.waits()) pump_leases();
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
