// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of rt/runtime.hpp: calls of this process to its own actors whose arguments travel as they are.
//
// They stand in one queue with the frames of this process to itself, so that calls of both kinds keep their order, and
// meet the same gates, time slices and cancellations. What a reply has for a value goes straight to the call that
// waits; a failure, and a value with a codec of its own, come as a frame.

#include <skein/core/loop.hpp>
#include <skein/rt/detail/direct_books.hpp>
#include <skein/rt/detail/runtime_books.hpp>
#include <skein/wire/reader.hpp>

#include <exception>
#include <utility>

#include <fmt/format.h>

namespace skein::rt {

/// A method has its result. False: who has called it is another process.
SKEIN_INLINE bool runtime::reply_here(peer& to, slot_id id, detail::finisher finish) {
    if (to.role != detail::peer_role::here) return false;
    const auto call = free_slot(id);
    if (!call) return true;
    const task_context::use none(nullptr); // what waits for it is not part of the method
    const auto lane = credits::give(*books_, to, *call);
    try {
        if (!call->is_done()) finish(*call);
    } catch (...) { // the value could not be copied
        call->fail(detail::failure_of(std::current_exception(), *call->fn, books_->name));
    }
    if (lane) drain(*lane);
    return true;
}

namespace detail {

/// The call leaves: its arguments are copied or moved now.
SKEIN_INLINE void direct_books::give(counted_ptr<call_base> call, given_maker make) {
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
    who.id = who.trace = call_id({self.books_->incarnation, raw.number});
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
    runtime::credits::take(*self.books_, *here, raw, 0); // in calls alone: it is not written down
    self.direct_call_began(raw);
    raw.order = ++here->sent;
    loopback_frame f;
    f.kind = message_call;
    f.id = raw.slot.value();
    f.given = std::move(given);
    push(std::move(f));
}

/// As runtime::arrived() does with one that was encoded.
SKEIN_INLINE void direct_books::arrived(std::unique_ptr<given_call> given) {
    auto& books = *self.books_;
    if (books.closing) return;
    if (books.has_backlog) {
        const auto id = given->slot;
        books.backlog.push_back({here, id, {}, false, {}, std::move(given)});
        return;
    }
    self.begin_turn();
    execute(std::move(given), nullptr);
    self.end_turn();
}

/// Its turn has come behind calls that have run for long; it may have been cancelled meanwhile.
SKEIN_INLINE void direct_books::execute_waiting(std::unique_ptr<given_call> given) {
    const auto id = given->slot;
    try {
        if (here->unwanted.erase(id) == 0) return execute(std::move(given), nullptr);
        error why(errc::cancelled, given->fn->name + " was cancelled; it did not run");
        self.reply_failure(*here, id, {std::move(why), nullptr});
    } catch (const error& e) {
        self.reply_failure(*here, id, {e, nullptr});
    }
}

/// box: the actor, if the call has waited for its turn. See runtime::execute().
SKEIN_INLINE void direct_books::execute(std::unique_ptr<given_call> given,
                                        std::shared_ptr<actor_box> box) {
    auto& fn = *given->fn;
    if (!box) {
        box = self.box_for(*here, given->slot, fn, given->target);
        if (!box) return;
        const bool is_full = fn.group != 0 && box->gate_of(fn.group).is_full();
        if ((box->not_started > 0 || is_full) && !fn.is_coroutine)
            return hold_back(std::move(given), std::move(box));
    }
    if (box->over != nullptr) return self.reply_over(*here, given->slot, fn, *box);
    ++self.books_->stats.executed;
    wire::reader no_bytes{byte_span()};
    incoming_call call{self, here, given->slot, fn, given->target, no_bytes, std::move(box)};
    struct executing_guard {
        runtime* before = runtime::executing_;
        ~executing_guard() { runtime::executing_ = before; }
    } const guard;
    runtime::executing_ = &self;
    const task_context::use under(&self.context_for(given->who, given->target, fn));
    given->run(call);
}

/// A plain call that may not start yet. See runtime::hold_back().
SKEIN_INLINE void direct_books::hold_back(std::unique_ptr<given_call> given,
                                          std::shared_ptr<actor_box> box) {
    ++box->not_started;
    if (box->gate_of(given->fn->group).limit == 0) {
        self.books_->calls.spawn(execute_later(std::move(given), std::move(box)));
        return;
    }
    const auto id = given->slot;
    const task_context::use under(&self.context_for(given->who, given->target, *given->fn));
    self.begin_call(here, id, true, execute_in_turn(std::move(given), std::move(box)));
    auto& books = *self.books_;
    books.fresh.emplace_back(here, id); // its caller hears that it is held
    if (books.fresh.size() == 1) books.calls.spawn(self.tell_started());
}

SKEIN_INLINE task<void> direct_books::execute_later(std::unique_ptr<given_call> given,
                                                    std::shared_ptr<actor_box> box) {
    --box->not_started;
    execute(std::move(given), std::move(box));
    co_return;
}

SKEIN_INLINE task<void> direct_books::execute_in_turn(std::unique_ptr<given_call> given,
                                                      std::shared_ptr<actor_box> box) {
    const auto& fn = *given->fn;
    auto turn = self.take_turn(here, given->slot, &fn, box);
    const bool may_start = co_await turn;
    if (!may_start) co_return;
    const start_gate::seat seat(fn.group != 0 ? &box->gate_of(fn.group) : nullptr);
    execute(std::move(given), box);
}

} // namespace detail

} // namespace skein::rt
