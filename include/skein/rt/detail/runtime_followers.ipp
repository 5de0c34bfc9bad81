// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of rt/runtime.hpp: tasks and actors with `.on = handle`. When such a call is
// placed it gets the label of the node where the actor is, and stands in a line as for any label.
// While the actor is being made, or made again, its followers wait for it; when it moves, those in
// lines are taken out and follow; when it ends, they fail.

#include <skein/rt/detail/runtime_state.hpp>

#include <algorithm>
#include <string>
#include <utility>

#include <fmt/format.h>

namespace skein::rt {

namespace detail {

/// Empty: the worker does not say where it is.
[[nodiscard]] inline std::string node_label(const worker_room& worker) {
    for (const auto& l : worker.labels)
        if (l.starts_with("node=")) return l;
    return {};
}

[[nodiscard]] inline error cannot_follow(const call_base& call, const error& why) {
    error said(why.code(),
               fmt::format("{} {}: it is to run where {} is: {}", call.name(), call.progress(),
                           call.owner->actor_title(call.rare->beside), why.text()));
    if (!why.hint().empty()) said.with_hint(why.hint());
    return said;
}

/// "@=2/web": bundle 2 of the group of that name, as a worker says it; "@=/web" any; "@=+/web" with
/// what is made there.
[[nodiscard]] inline std::string named_group_label(const location& on) {
    const auto bundle = on.bundle() < 0 ? std::string() : fmt::format("{}", on.bundle());
    return fmt::format("@={}{}/{}", bundle, on.has_children() ? "+" : "", on.text());
}

} // namespace detail

/// Driver: what a call asks for must be in its group, which it keeps from now on.
SKEIN_INLINE void runtime::join_group(detail::call_base& call) {
    const auto& demand = state_->dispatch.demands().at(call.demand);
    if (demand.group == 0) return;
    auto& bad = call.extra().bad_options;
    if (auto why = state_->groups.keep(call, demand.group)) bad = std::move(why);
    if (bad) return;
    bad = detail::misfit(*state_->groups.table().state_of(demand.group), demand.need,
                         demand.bundle);
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
        call.extra().label = sched::group_label(on.group(), on.bundle());
        if (on.has_children()) call.extra().label += '+';
    } else if (on.is_named_group() && !on.text().empty()) {
        call.extra().label = detail::named_group_label(on);
    } else {
        if (on.is_anywhere()) call.extra().label = sched::anywhere_label;
        return true;
    }
    on = {};
    return !call.rare->bad_options;
}

/// The call is to run where that actor is, which it keeps, as an argument would, until it is over.
SKEIN_INLINE void runtime::followers::follow(runtime& self, detail::call_base& call, actor_id of) {
    if (self.state_->upstream != nullptr)
        call.extra().label = sched::actor_label(of);
    else
        call.extra().beside = of;
    const auto queue = self.state_->actor_queues.find(of);
    if (queue == self.state_->actor_queues.end()) return;
    using held = counted_ptr<detail::actor_queue>;
    call.keep(std::make_shared<held>(queue->second));
}

/// Driver: gives the call the node of its actor. False: it waits for the actor to be somewhere, or
/// has failed.
SKEIN_INLINE bool runtime::followers::may_go(runtime& self,
                                             const counted_ptr<detail::call_base>& call) {
    if (!call->rare || !call->rare->beside) return true;
    const auto id = call->rare->beside;
    auto& state = *self.state_;
    auto* const entry = state.actors.find(id);
    if (entry == nullptr) {
        const auto queue = state.actor_queues.find(id);
        const bool is_told = queue != state.actor_queues.end() && queue->second->lost;
        const auto why =
            is_told ? queue->second->lost->what
                    : error(errc::not_found, self.actor_title(id) + " is not known here")
                          .with_hint("it has ended, or it lives in a namespace or program other "
                                     "than that of the call");
        self.refuse(*call, detail::cannot_follow(*call, why));
        return false;
    }
    if (entry->where == nullptr || entry->where->room.labels_follow) {
        entry->add_beside(call);
        if (call->kind == detail::call_kind::create)
            if (auto* const own = state.actors.find(call->target)) own->making = call;
        return false;
    }
    auto& demands = state.dispatch.demands();
    const auto number = demands.number_on(call->demand, detail::node_label(entry->where->room));
    if (!number) {
        self.refuse(*call, detail::cannot_follow(*call, number.error()));
        return false;
    }
    entry->is_followed = true;
    call->demand = *number;
    if (call->kind == detail::call_kind::task) call->cpus = demands.at(*number).cpus;
    return true;
}

/// Driver: those that have waited for it go on.
SKEIN_INLINE void runtime::followers::actor_is_placed(runtime& self, actor_id id) {
    auto* const entry = self.state_->actors.find(id);
    if (entry == nullptr) return;
    for (auto& call : std::exchange(entry->beside, {}))
        if (!call->is_done()) self.place(std::move(call));
}

/// Takes those that are to run where this actor is out of their lines.
SKEIN_INLINE void runtime::followers::take_out(runtime& self, actor_id id, calls& into) {
    self.state_->dispatch.lines().take_if(
        [&](const counted_ptr<detail::call_base>& call) {
            return !call->is_done() && call->rare && call->rare->beside == id;
        },
        into);
}

SKEIN_INLINE void runtime::set_labels(const net::channel& wire,
                                      const std::vector<std::string>& labels) {
    std::vector<actor_id> here;
    for (const auto& l : state_->links) {
        if (l->wire.get() != &wire || l->room.labels == labels) continue;
        state_->dispatch.book().set_labels(l->room, labels);
        for (const auto& [id, entry] : state_->actors.entries)
            if (entry.where == l.get()) here.push_back(id);
    }
    std::sort(here.begin(), here.end());
    for (const auto id : here) followers::actor_is_placed(*this, id);
    if (state_->dispatch.waits()) pump_leases();
}

/// Driver: their actor has ended.
SKEIN_INLINE void runtime::followers::fail(const calls& all, const error& why) {
    for (const auto& call : all)
        if (!call->is_done()) call->fail({detail::cannot_follow(*call, why), nullptr});
}

} // namespace skein::rt
