// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of rt/runtime.hpp: calls of this process to its own actors whose arguments
// travel as they are.
//
// They stand in one queue with the frames of this process to itself, so that calls of both kinds
// keep their order, and meet the same gates, time slices and cancellations. What a reply has for a
// value goes straight to the call that waits; a failure, and a value with a codec of its own, come
// as a frame.

#include <skein/core/loop.hpp>
#include <skein/rt/detail/direct_state.hpp>
#include <skein/rt/detail/runtime_state.hpp>
#include <skein/wire/reader.hpp>

#include <exception>
#include <utility>

#include <fmt/format.h>

namespace skein::rt {

SKEIN_INLINE void peer::finish_here(slot_id id, detail::finisher finish) {
    loopback->finish(*this, id, finish);
}

namespace detail {

/// A method has its result.
SKEIN_INLINE void direct_state::finish(peer& by, slot_id id, finisher how) {
    const auto call = self.free_slot(id);
    if (!call) return;
    const task_context::use none(nullptr); // what waits for it is not part of the method
    const auto queue = runtime::credits::give(*self.state_, by, *call);
    try {
        if (!call->is_done()) how(*call);
    } catch (...) { // the value could not be copied
        call->fail(failure_of(std::current_exception(), *call->fn, self.state_->name));
    }
    if (queue) self.drain(*queue);
}

/// The call leaves: its arguments are copied or moved now.
SKEIN_INLINE void direct_state::give(counted_ptr<call_base> call, given_maker make) {
    auto& raw = *call;
    std::unique_ptr<given_call> given;
    try {
        struct encoding_guard {
            call_base* before = runtime::encoding_;
            ~encoding_guard() { runtime::encoding_ = before; }
        } const guard;
        runtime::encoding_ = &raw; // keeps the actors whose handles go along
        given = make();
    } catch (...) {
        const error why = to_error(std::current_exception());
        return raw.fail({error(why.code(), fmt::format("{} did not run: its arguments cannot be "
                                                       "copied: {}",
                                                       raw.name(), why.text())),
                         nullptr});
    }
    auto& who = given->who;
    who.id = who.trace = call_id({self.state_->incarnation, raw.number});
    if (raw.parent) {
        who.trace = raw.parent->who.trace;
        who.parent = raw.parent->who.id;
    }
    if (raw.rare && raw.rare->deadline) who.until = raw.rare->until;
    raw.slot = self.take_slot(std::move(call));
    given->fn = raw.fn;
    given->slot = raw.slot;
    given->target = raw.target;
    raw.on = here.get();
    raw.state = phase::sent;
    runtime::credits::take(*self.state_, *here, raw, 0); // in calls alone: it is not written down
    self.direct_call_began(raw);
    raw.order = ++here->sent;
    loopback_frame f;
    f.kind = message_call;
    f.id = raw.slot.value();
    f.given = std::move(given);
    push(std::move(f));
}

} // namespace detail

} // namespace skein::rt
