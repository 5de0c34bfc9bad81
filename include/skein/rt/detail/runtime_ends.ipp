// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of rt/runtime.hpp: how actors end, and tasks by force.

#include <skein/core/constants.hpp>
#include <skein/core/log.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/type_name.hpp>
#include <skein/rt/detail/runtime_state.hpp>

#include <algorithm>
#include <string>
#include <utility>

#include <fmt/format.h>

namespace skein::rt {

namespace detail {

SKEIN_INLINE std::string times(std::int64_t n) {
    return n == 1 ? std::string("once") : fmt::format("{} times", n);
}

SKEIN_INLINE failure ended(std::string_view title, std::string_view how) {
    return {error(errc::not_found, fmt::format("{} {}", title, how)), nullptr};
}

} // namespace detail

SKEIN_INLINE std::string runtime::actor_title(actor_id id) const {
    std::string_view name;
    const std::type_info* type = nullptr;
    if (const auto* const box = state_->local_actors.find(id); box != nullptr) {
        name = (*box)->name;
        type = &(*box)->type;
    }
    if (const auto* const entry = state_->actors.find(id); entry != nullptr) {
        if (entry->plan) name = entry->plan->terms.name;
        type = entry->type;
    }
    if (const auto queue = state_->actor_queues.find(id); queue != state_->actor_queues.end()) {
        if (!queue->second->name.empty()) name = queue->second->name;
        if (queue->second->type != nullptr) type = queue->second->type;
    }
    return detail::actor_title(id, name, type);
}

/// Driver: forgets an actor. tell: what its worker hears, 0: nothing. why: what calls that wait
/// hear.
SKEIN_INLINE void runtime::end_actor(actor_id id, std::uint16_t tell, const failure* why) {
    auto& actors = state_->actors;
    auto node = actors.entries.extract(id);
    if (node.empty()) return;
    actors.held.forget(id);
    auto entry = std::move(node.mapped());
    if (entry.plan && !entry.plan->terms.name.empty()) actors.names.erase(entry.plan->terms.name);
    counted_ptr<detail::actor_queue> queue;
    if (const auto found = state_->actor_queues.find(id); found != state_->actor_queues.end())
        queue = counted_ptr<detail::actor_queue>(found->second);
    if (queue) {
        credits::leave(*state_, *queue);
        queue->moving = false;
        queue->lost = why != nullptr ? *why : detail::ended(actor_title(id), "is gone");
    }
    if (entry.where != nullptr) {
        if (tell != 0) send_actor(*entry.where, tell, id);
        actor_left(*entry.where);
    }
    const auto& told = why != nullptr ? *why : detail::ended(actor_title(id), "is gone");
    if (tell == detail::message_kill) // what its worker has not begun
        for (std::size_t i = 0; i < state_->slots.size(); ++i) {
            const auto call = state_->slots[i].call;
            if (call && call->target == id && call->kind == detail::call_kind::method &&
                !call->is_done() && take_back(*call))
                entry.waiting.push_back(call);
        }
    for (const auto& call : entry.waiting)
        if (!call->is_done())
            call->fail({error(told.what.code(), call->name() + " did not run: " + told.what.text()),
                        nullptr});
    if (queue) fail_queue(*queue);
    if (entry.is_followed) followers::take_out(*this, id, entry.beside);
    followers::fail(entry.beside, told.what);
    if (!entry.beside.empty()) pump();
    for (const auto asker : entry.askers) tell_where(asker, id, nullptr, told.what.text());
    give_late_holds_back(id);
    const auto& making = entry.making; // it may wait for long for what nobody wants any more
    if (making && !making->is_done() && making->state == detail::phase::queued &&
        making->on == nullptr) {
        making->fail({error(errc::cancelled, making->name() + " did not run: " + told.what.text()),
                      nullptr});
        pump();
    }
}

/// Driver: the group in which they live is over.
SKEIN_INLINE void runtime::end_actors(const detail::group_state& group) {
    std::vector<actor_id> inside;
    for (const auto& [id, entry] : state_->actors.entries)
        if (entry.group.get() == &group) inside.push_back(id);
    std::sort(inside.begin(), inside.end());
    for (const auto id : inside) {
        const failure told{error(group.why->code(), fmt::format("{} has ended: {}", actor_title(id),
                                                                group.why->text())),
                           nullptr};
        end_actor(id, detail::message_kill, &told);
    }
}

SKEIN_INLINE void runtime::kill_actor(actor_id id) {
    if (state_->awaits_space_server) {
        state_->kills.push_back(id);
        return close_queue(id, detail::ended(actor_title(id), "was killed"));
    }
    if (state_->upstream != nullptr) {
        tell_driver_first();
        send_actor(*state_->upstream, detail::message_kill, id);
        return close_queue(id, detail::ended(actor_title(id), "was killed"));
    }
    const auto why = detail::ended(actor_title(id), "was killed");
    end_actor(id, detail::message_kill, &why);
}

SKEIN_INLINE void runtime::leave_actor() { state_->local_actors.leave(); }

SKEIN_INLINE std::string runtime::state::listener::title_of(actor_id id) const {
    return self.actor_title(id);
}

SKEIN_INLINE void runtime::state::listener::actor_has_left(actor_id id) {
    self.tell_driver_first();
    if (auto* const driver = self.state_->upstream) send_actor(*driver, detail::message_left, id);
}

// ---- cancelling by force -----------------------------------------------------------------------

/// Driver: what can end by itself is given time to.
SKEIN_INLINE void runtime::force_soon(detail::call_base& call) {
    if (state_->upstream != nullptr || call.on == nullptr) return;
    auto& force = call.rare->force;
    if (!force) force.emplace(call);
    if (force->is_set()) return;
    auto& here = loop::current();
    here.set_timer(*force, deadline_after(here.exact_now(), time_constants::lan().force_after));
}

/// Plain tasks run in the order in which they were sent: behind one that has no outcome, another
/// has not begun.
SKEIN_INLINE bool runtime::waits_at(const peer& at, const detail::call_base& call) const {
    return std::any_of(state_->slots.begin(), state_->slots.end(), [&](const auto& s) {
        const auto* const other = s.call.get();
        return other != nullptr && other->fn != nullptr && other->on == &at &&
               other->kind == detail::call_kind::task && !other->is_done() &&
               !other->fn->is_coroutine && other->order < call.order &&
               !detail::is_unwanted(*other);
    });
}

SKEIN_INLINE void runtime::end_by_force(detail::call_base& call) {
    if (call.is_done() || call.on == nullptr) return; // it waits to be told that its worker is lost
    auto& at = *call.on;
    if (!at.up || !at.ended_for.empty()) return;
    if (waits_at(at, call)) return force_soon(call); // its cancellation is there, before its turn
    if (at.room.actors > 0) {
        logging::warn(
            "rt", "a task goes on although it was cancelled by force: actors live on its worker",
            {{"task", call.name()}, {"worker", at.who}, {"actors", at.room.actors}});
        return;
    }
    at.ended_for = fmt::format("it was ended by force, to cancel {}", call.name());
    at.forced = state_->id_of(call);
    state_->dispatch.retire(at.room, true); // nothing new goes there
    if (auto* const source = state_->dispatch.source())
        source->end_now(*at.wire);
    else
        at.abort(error(errc::cancelled, at.ended_for)); // who serves it sees to its process
}

} // namespace skein::rt
