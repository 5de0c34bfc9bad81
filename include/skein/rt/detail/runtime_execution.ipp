// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of rt/runtime.hpp: the calls that run here, whichever way their arguments
// came.
//
// Calls run in order, here and now, until they have taken so long that their replies should leave
// and a cancellation should be heard: the rest waits for the next turn of the loop.

#include <skein/core/cancel.hpp>
#include <skein/core/constants.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/sleep.hpp>
#include <skein/core/type_name.hpp>
#include <skein/proc/detail/threads.hpp>
#include <skein/rt/detail/direct_state.hpp>
#include <skein/rt/detail/runtime_state.hpp>

#include <coroutine>
#include <exception>
#include <utility>

#include <fmt/format.h>

namespace skein::rt {

// ---- arriving ----------------------------------------------------------------------------------

SKEIN_INLINE void runtime::execution::arrived(runtime& self, const std::shared_ptr<peer>& from,
                                              const net::frame_view& f) {
    framed call(f.body, loop::current().now());
    take(self, from, slot_id(f.id), call);
}

SKEIN_INLINE void runtime::execution::arrived(runtime& self, const std::shared_ptr<peer>& from,
                                              std::unique_ptr<detail::given_call> arguments) {
    const auto id = arguments->slot;
    given call(std::move(arguments));
    take(self, from, id, call);
}

template <class Form>
void runtime::execution::take(runtime& self, const std::shared_ptr<peer>& from, slot_id id,
                              Form& call) {
    auto& of = *self.state_;
    if (of.has_backlog) {
        arrival one{from, id, {}, false, {}, {}};
        call.keep(one);
        return enqueue(of, std::move(one));
    }
    self.begin_turn();
    run(self, from, id, call, {});
    self.end_turn();
}

/// The last handle of an actor is gone, after the calls that came before.
SKEIN_INLINE void runtime::execution::dropped(runtime& self, const std::shared_ptr<peer>& from,
                                              byte_span body) {
    auto& of = *self.state_;
    if (of.has_backlog) return enqueue(of, {from, slot_id(), to_buffer(body), true, {}, {}});
    of.boxes.erase(detail::actor_of(body, from->who));
}

SKEIN_INLINE void runtime::execution::enqueue(state& of, arrival one) {
    peer& from = *one.from;
    of.backlog_bytes += one.body.size();
    of.backlog.push_back(std::move(one));
    of.backlog_full = of.backlog_full || of.backlog_bytes > limit::backlog_bytes;
    if (of.backlog_full && from.wire && !std::exchange(from.is_paused, true))
        from.wire->pause_reading();
}

/// A call runs; perhaps it is the first one of this turn of the loop.
SKEIN_INLINE void runtime::begin_turn() {
    if (state_->in_turn.is_linked()) return;
    auto& here = loop::current();
    state_->turn_began = here.coarse_now();
    here.at_turn_end(state_->in_turn);
}

SKEIN_INLINE void runtime::end_turn() {
    const auto lasted = loop::current().coarse_now() - state_->turn_began;
    if (lasted < limit::call_turn || state_->closing) return;
    state_->has_backlog = true;
    state_->calls.spawn(run_backlog());
}

namespace detail {

/// Resumes in the next turn of the loop, when replies have left and what has come was read.
struct next_turn : turn_hook {
    next_turn() noexcept
        : turn_hook(
              [](turn_hook& h) { loop::current().post(static_cast<next_turn&>(h).waiting); }) {}
    static bool await_ready() noexcept { return false; }
    void await_suspend(std::coroutine_handle<> h) noexcept {
        waiting = h;
        loop::current().at_turn_end(*this);
    }
    static void await_resume() noexcept {}
    std::coroutine_handle<> waiting;
};

} // namespace detail

SKEIN_INLINE task<void> runtime::run_backlog() {
    auto& waiting = state_->backlog;
    do {
        detail::next_turn next;
        co_await next;
        co_await yield(); // behind the readers that this turn has woken
        auto& here = loop::current();
        const auto began = here.coarse_now();
        while (!waiting.empty() && here.coarse_now() - began < limit::call_turn) {
            auto one = std::move(waiting.front());
            waiting.pop_front();
            state_->backlog_bytes -= one.body.size();
            if (!state_->closing) execution::run_waiting(*this, one); // else its driver has gone
        }
        if (state_->backlog_bytes < limit::backlog_bytes / 2 &&
            std::exchange(state_->backlog_full, false))
            execution::for_each_caller(*state_, [](peer& one) {
                if (std::exchange(one.is_paused, false)) one.wire->resume_reading();
            });
    } while (!waiting.empty());
    state_->has_backlog = false;
    execution::for_each_caller(*state_, [](peer& one) { one.unwanted.clear(); });
}

template <class F>
void runtime::execution::for_each_caller(const state& of, F what) {
    if (of.upstream != nullptr) what(*of.upstream);
    for (const auto& one : of.direct->callers) what(*one);
    if (of.direct->here) what(*of.direct->here);
}

template <class F>
void runtime::execution::with_form(arrival& one, F what) {
    if (one.given) {
        given call(std::move(one.given));
        what(call);
    } else {
        framed call(one.body, one.came);
        what(call);
    }
}

/// What has waited behind calls that have run for long. It may have been cancelled meanwhile.
SKEIN_INLINE void runtime::execution::run_waiting(runtime& self, arrival& one) {
    peer& from = *one.from;
    try {
        if (one.is_drop) {
            self.state_->boxes.erase(detail::actor_of(one.body, from.who));
            return;
        }
        const bool is_wanted = from.unwanted.erase(one.slot) == 0;
        with_form(one, [&](auto& call) {
            if (is_wanted) return run(self, one.from, one.slot, call, {});
            if (!call.open(from, one.slot, true)) return;
            error why(errc::cancelled, call.fn().name + " was cancelled; it did not run");
            self.reply_failure(from, one.slot, {std::move(why), nullptr});
        });
    } catch (
        const error& e) { // no call: as in the handler of a link, or of this process's own frames
        if (from.role == detail::peer_role::here)
            self.reply_failure(from, one.slot, {e, nullptr});
        else
            from.abort(e);
    }
}

// ---- running -----------------------------------------------------------------------------------

namespace detail {

[[noreturn, gnu::cold, gnu::noinline]] SKEIN_INLINE void refuse_head(const std::string& who,
                                                                     const function_record* fn) {
    if (fn == nullptr)
        throw error(errc::malformed, fmt::format("a call that cannot be read from {}", who));
    throw error(errc::malformed,
                fmt::format("{} sends a call of {} that is none of its kind", who, fn->name));
}

/// The function that a call names; its head must fit it.
SKEIN_INLINE const function_record& read_head(wire::reader& in, call_head& head, const peer& from,
                                              time_point came) {
    const bool good = head.decode(in, from.incarnation, came);
    const auto* fn = good ? registry::instance().at(head.function) : nullptr;
    if (fn == nullptr) [[unlikely]]
        refuse_head(from.who, fn);
    const auto wanted = fn->is_constructor     ? call_kind::create
                        : fn->actor != nullptr ? call_kind::method
                                               : call_kind::task;
    if (head.kind != wanted) [[unlikely]]
        refuse_head(from.who, fn);
    return *fn;
}

[[gnu::cold, gnu::noinline]] SKEIN_INLINE error wrong_actor(const std::string& who,
                                                            const function_record& fn,
                                                            actor_id actor,
                                                            const std::type_info& type) {
    return error(errc::malformed, fmt::format("{} calls {} of actor {}, which is a {}", who,
                                              fn.name, actor, readable_name(type.name())));
}

[[gnu::cold, gnu::noinline]] SKEIN_INLINE failure actor_is_gone(const function_record& fn,
                                                                std::string_view actor) {
    error gone(errc::not_found, fmt::format("{} did not run: {} is gone", fn.name, actor));
    gone.with_hint("its last handle was dropped, or it was killed, or has left");
    return {std::move(gone), nullptr};
}

[[noreturn, gnu::cold, gnu::noinline]] SKEIN_INLINE void refuse_direct(const peer& from, slot_id id,
                                                                       const call_head& head,
                                                                       const function_record& fn) {
    if (head.kind != call_kind::method)
        throw error(errc::malformed,
                    fmt::format("{} calls {}, which is no method", from.who, fn.name));
    if (head.who.id.value().incarnation != from.incarnation)
        throw error(errc::malformed, fmt::format("{} sends a call in another's name", from.who));
    throw error(errc::malformed, fmt::format("a second call {} from {}", id, from.who));
}

/// A call of another worker is about to run. Throws if it is none that a worker may send.
SKEIN_INLINE void check_direct(peer& from, slot_id id, const call_head& head,
                               const function_record& fn) {
    if (head.kind != call_kind::method || head.who.id.value().incarnation != from.incarnation ||
        from.running.find(id) != nullptr) [[unlikely]]
        refuse_direct(from, id, head, fn);
}

[[noreturn, gnu::cold, gnu::noinline]] SKEIN_INLINE void refuse_past(const peer& from,
                                                                     actor_id actor) {
    throw error(
        errc::malformed,
        fmt::format("{} calls actor {} past the driver, which keeps its calls", from.who, actor));
}

} // namespace detail

SKEIN_INLINE bool runtime::execution::framed::open(peer& from, slot_id id, bool is_first) {
    fn_ = &detail::read_head(in_, head_, from, came_);
    if (!is_first) return true;
    if (!from.page.begin()) { // its driver has taken it back
        credits::pass_by(from, id, head_);
        return false;
    }
    if (from.role == detail::peer_role::accepted) detail::check_direct(from, id, head_, *fn_);
    return true;
}

SKEIN_INLINE void runtime::execution::framed::check(const peer& from,
                                                    const detail::actor_box& box) const {
    if (from.role == detail::peer_role::accepted && box.lasts) [[unlikely]]
        detail::refuse_past(from, head_.target);
}

/// A plain call that has just arrived lets coroutine calls of its actor go first that have not
/// started yet; coroutine calls start from the run queue, so in order.
template <class Form>
void runtime::execution::run(runtime& self, const std::shared_ptr<peer>& from, slot_id id,
                             Form& call, counted_ptr<detail::actor_box> box) {
    if (!call.open(*from, id, !box)) return;
    const auto& fn = call.fn();
    if (call.is_method() && !box) {
        box = self.box_for(*from, id, fn, call.target());
        if (!box) return;
        call.check(*from, *box);
        const bool is_full = fn.group != 0 && box->gate_of(fn.group).is_full();
        if ((box->not_started > 0 || is_full) && !fn.is_coroutine)
            return hold_back(self, from, id, call, std::move(box));
    }
    if (box && box->over != nullptr) return self.reply_over(*from, id, fn, *box);
    ++self.state_->stats.executed;
    if (proc::detail::threads_vary) [[unlikely]]
        proc::detail::use_threads(call.cpus());
    detail::incoming_call in{
        self, from, id, fn, call.target(), call.arguments(), std::move(box), call.has_terms()};
    const detail::executing_mark by(&self);
    const task_context::use under(&self.context_for(call.who(), call.target(), fn));
    call.run(in);
}

/// The actor of a call of a method. None: it is gone, and the caller has been told.
SKEIN_INLINE counted_ptr<detail::actor_box> runtime::box_for(peer& from, slot_id id,
                                                             const function_record& fn,
                                                             actor_id actor) {
    const auto* const found = state_->boxes.find(actor);
    if (found == nullptr) [[unlikely]] {
        reply_failure(from, id, detail::actor_is_gone(fn, actor_title(actor)));
        return {};
    }
    if (&(*found)->type != fn.actor && (*found)->type != *fn.actor) [[unlikely]]
        throw detail::wrong_actor(from.who, fn, actor, (*found)->type);
    return *found;
}

/// What a call that runs now belongs to. That of the last one serves again if nothing has kept it.
SKEIN_INLINE detail::call_context& runtime::context_for(const detail::trace_context& who,
                                                        actor_id actor, const function_record& fn) {
    auto& spare = state_->spare;
    if (!spare || spare->uses() > 1) spare = counted_ptr(new detail::call_context(state_->anchor));
    spare->who = who;
    spare->fn = &fn;
    spare->actor = actor;
    return *spare;
}

/// A plain call that may not start yet. Where it may wait for long, it can be cancelled, and its
/// caller hears that it is held.
template <class Form>
void runtime::execution::hold_back(runtime& self, const std::shared_ptr<peer>& from, slot_id id,
                                   Form& call, counted_ptr<detail::actor_box> box) {
    ++box->not_started;
    const auto& fn = call.fn();
    const auto kept = [&] {
        arrival one{from, id, {}, false, {}, {}};
        call.keep(one);
        return one;
    };
    if (box->gate_of(fn.group).limit == 0) {
        self.state_->calls.spawn(run_later(&self, kept(), std::move(box)));
        return;
    }
    const task_context::use under(&self.context_for(call.who(), call.target(), fn));
    self.begin_call(from, id, true, run_in_turn(&self, kept(), &fn, std::move(box)));
    self.tell_soon(from, id);
}

SKEIN_INLINE task<void> runtime::execution::run_later(runtime* self, arrival one,
                                                      counted_ptr<detail::actor_box> box) {
    --box->not_started;
    with_form(one, [&](auto& call) { run(*self, one.from, one.slot, call, std::move(box)); });
    co_return;
}

SKEIN_INLINE task<void> runtime::execution::run_in_turn(runtime* self, arrival one,
                                                        const function_record* fn,
                                                        counted_ptr<detail::actor_box> box) {
    auto turn = self->take_turn(one.from, one.slot, fn, box);
    const bool may_start = co_await turn;
    if (!may_start) co_return;
    const detail::start_gate::seat seat(fn->group != 0 ? &box->gate_of(fn->group) : nullptr);
    with_form(one, [&](auto& call) { run(*self, one.from, one.slot, call, box); });
}

SKEIN_INLINE void runtime::start(detail::incoming_call& call, task<void> work) {
    const bool waits = call.box && call.box->gate_of(call.fn.group).limit != 0;
    begin_call(call.from, call.slot, waits, std::move(work));
    tell_soon(call.from, call.slot);
}

SKEIN_INLINE void runtime::begin_call(const std::shared_ptr<peer>& from, slot_id id, bool waits,
                                      task<void> work) {
    if (from->running.find(id) != nullptr)
        throw error(errc::malformed, fmt::format("a second call {} from {}", id, from->who));
    std::unique_ptr<detail::running_call> made(new detail::running_call);
    auto& running = *made;
    running.context = state_->spare;
    running.waits = waits;
    running.news = state_->replies.news().of_new_call();
    from->running.enter(id, std::move(made));
    state_->calls.spawn(run_call(from, id, &running, std::move(work)));
}

SKEIN_INLINE task<void> runtime::run_call(std::shared_ptr<peer> from, slot_id id,
                                          detail::running_call* running, task<void> work) {
    auto* const outer = co_await skein::detail::current_cancel{};
    running->stop.link(outer);
    try {
        skein::detail::await_under<void> inner(std::move(work), &running->stop);
        co_await inner;
    } catch (...) { // it could not even say so: the others that run here must not end for that
        from->abort(to_error(std::current_exception()));
    }
    from->running.erase(id);
}

/// Whether it has started, or has to wait, is told to its caller, unless it is over by then.
SKEIN_INLINE void runtime::tell_soon(const std::shared_ptr<peer>& to, slot_id id) {
    state_->fresh.emplace_back(to, id);
    if (state_->fresh.size() == 1) state_->calls.spawn(tell_started());
}

/// Runs after the first steps of the calls that have just started: those that are not done by then
/// have suspended, or wait for others before they start, and their submitter is told.
SKEIN_INLINE task<void> runtime::tell_started() {
    co_await yield();
    for (const auto& [to, id] : std::exchange(state_->fresh, {})) {
        auto* const found = to->running.find(id);
        if (found == nullptr || (*found)->told || !to->is_open()) continue;
        auto& is_told = (*found)->waits ? (*found)->held : (*found)->told;
        if (std::exchange(is_told, true)) continue;
        to->send((*found)->waits ? detail::message_held : detail::message_started, 0, id.value(),
                 {});
    }
    co_return;
}

} // namespace skein::rt
