// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of rt/runtime.hpp: how actors end, and tasks by force.

#include <skein/core/constants.hpp>
#include <skein/core/log.hpp>
#include <skein/core/loop.hpp>
#include <skein/rt/detail/runtime_state.hpp>

#include <algorithm>
#include <string>
#include <utility>

#include <fmt/format.h>

namespace skein::rt {

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

SKEIN_INLINE void runtime::kill_actor(actor_id id) {
    if (state_->awaits_space_server) {
        state_->kills.push_back(id);
    } else if (state_->upstream != nullptr) {
        state_->replies.told_driver();
        detail::send_actor(*state_->upstream, detail::message_kill, id);
    } else {
        return state_->actors.kill(id);
    }
    close_queue(id, detail::ended(actor_title(id), "was killed"));
}

SKEIN_INLINE void runtime::leave_actor() { state_->local_actors.leave(); }

// ---- cancelling by force -----------------------------------------------------------------------

/// Driver: what can end by itself is given time to.
SKEIN_INLINE void runtime::force_soon(detail::call_base& call) {
    if (state_->upstream != nullptr || call.on == nullptr) return;
    auto& force = call.rare->force;
    if (!force)
        force.emplace(call, [](detail::call_base& late) {
            if (late.owner != nullptr) late.owner->end_by_force(late);
        });
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
