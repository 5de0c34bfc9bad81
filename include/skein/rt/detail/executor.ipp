// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of rt/detail/executor.hpp.

#include <skein/core/cancel.hpp>
#include <skein/core/constants.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/sleep.hpp>
#include <skein/core/type_name.hpp>
#include <skein/net/frame.hpp>
#include <skein/proc/detail/threads.hpp>
#include <skein/rt/detail/actor_name.hpp>
#include <skein/rt/detail/message.hpp>
#include <skein/rt/detail/next_turn.hpp>
#include <skein/rt/detail/peer.hpp>
#include <skein/rt/detail/runtime_mark.hpp>
#include <skein/rt/detail/stream_window.hpp>

#include <algorithm>
#include <exception>
#include <typeinfo>
#include <utility>

#include <fmt/format.h>

namespace skein::rt::detail {

SKEIN_INLINE void incoming_call::refuse(const error& why) const {
    error bad(why.code(), "arguments of " + fn.name + ": " + why.text());
    by.answers().reply_failure(*from, slot, {std::move(bad), nullptr});
}

SKEIN_INLINE void incoming_call::reply_thrown() const {
    by.answers().reply_thrown(*from, slot, fn);
}

SKEIN_INLINE executor::executor(counted_ptr<runtime_anchor> home, replies& answers,
                                local_actors& actors)
    : home_(std::move(home)), replies_(answers), actors_(actors) {}
SKEIN_INLINE executor::~executor() = default;

// ---- callers -----------------------------------------------------------------------------------

SKEIN_INLINE void executor::add_caller(peer& one) {
    auto at = callers_.end();
    if (one.role == peer_role::program)
        at = callers_.begin();
    else if (one.role == peer_role::accepted && at != callers_.begin() &&
             (*std::prev(at))->role == peer_role::here)
        --at;
    callers_.insert(at, &one);
}

SKEIN_INLINE void executor::remove_caller(const peer& one) noexcept { std::erase(callers_, &one); }

SKEIN_INLINE void executor::end_calls(peer& caller) {
    caller.inbound.running.for_each([](slot_id, const auto& call) { call->end(false); });
}

SKEIN_INLINE void executor::drop_calls(peer& caller) {
    end_calls(caller);
    backlog_.drop(caller);
}

SKEIN_INLINE void executor::cancel(peer& from, slot_id id, bool by_force) {
    if (auto* const found = from.inbound.running.find(id)) {
        (*found)->end(by_force);
    } else {
        backlog_.cancel(from, id);
        object_traffic::forget_values(from, id);
    }
}

SKEIN_INLINE void executor::items_were_taken(peer& from, slot_id id, byte_span body) {
    items_taken back;
    if (!back.decode(body))
        throw malformed(fmt::format("items that were taken and cannot be read from {}", from.who));
    auto* const found = from.inbound.running.find(id);
    if (found == nullptr || (*found)->items == nullptr) return; // its generator has ended
    if (!(*found)->items->give(back))
        throw malformed(fmt::format("{} has taken {} items of {} bytes, more than were sent to it",
                                    from.who, back.items, back.bytes));
}

// ---- arriving ----------------------------------------------------------------------------------

/// A call that names objects waits until they are held here, and those behind it wait with it.
SKEIN_INLINE void executor::arrived_with_objects(const std::shared_ptr<peer>& from,
                                                 const net::frame_view& f) {
    byte_span body = f.body;
    std::vector<object_use> uses;
    if (!take_uses(body, uses) || uses.empty())
        throw error(errc::malformed,
                    fmt::format("a call whose objects cannot be read from {}", from->who));
    arrival one{from, slot_id(f.id), to_buffer(body), false, loop::current().now(), {}};
    wire::reader head_of(body);
    call_head head;
    const auto& fn = read_head(head_of, head, *from, one.came);
    const auto objects = replies_.objects().claim(std::move(uses), fn.reads_views, from, one.slot);
    one.objects = objects;
    if (!backlog_.is_open()) {
        backlog_.open();
        calls_.spawn(run_backlog());
    }
    backlog_.push(std::move(one));
    if (backlog_.size() <= backlog::read_ahead) replies_.objects().read(objects);
}

SKEIN_INLINE void executor::arrived(const std::shared_ptr<peer>& from, const net::frame_view& f) {
    if (call_head::has_objects(f.body)) [[unlikely]]
        return arrived_with_objects(from, f);
    framed_form call(f.body, loop::current().now());
    take(from, slot_id(f.id), call);
}

SKEIN_INLINE void executor::arrived(const std::shared_ptr<peer>& from,
                                    std::unique_ptr<given_call> call) {
    const auto id = call->slot;
    given_form form(std::move(call));
    take(from, id, form);
}

template <class Form>
void executor::take(const std::shared_ptr<peer>& from, slot_id id, Form& call) {
    if (backlog_.is_open()) {
        arrival one{from, id, {}, false, {}, {}};
        call.keep(one);
        return backlog_.push(std::move(one));
    }
    begin_turn();
    run(from, id, call, {});
    end_turn();
}

SKEIN_INLINE void executor::dropped(const std::shared_ptr<peer>& from, byte_span body) {
    if (backlog_.is_open()) return backlog_.push({from, slot_id(), to_buffer(body), true, {}, {}});
    actors_.drop(actor_of(body, from->who));
}

/// A call runs; perhaps it is the first one of this turn of the loop.
SKEIN_INLINE void executor::begin_turn() {
    if (in_turn_.is_linked()) return;
    auto& here = loop::current();
    turn_began_ = here.coarse_now();
    here.at_turn_end(in_turn_);
}

SKEIN_INLINE void executor::end_turn() {
    const auto lasted = loop::current().coarse_now() - turn_began_;
    if (lasted < limit::call_turn || is_closed_) return;
    backlog_.open();
    calls_.spawn(run_backlog());
}

/// The objects that it names are not there.
template <class Form>
void executor::refuse_objects(peer& from, slot_id id, Form& call) {
    const auto& why = *call.objects()->why;
    error told(why.code(), fmt::format("{} did not run: {}", call.fn().name, why.text()));
    if (!why.hint().empty()) told.with_hint(std::string(why.hint()));
    replies_.reply_failure(from, id, {std::move(told), nullptr});
}

SKEIN_INLINE task<void> executor::run_backlog() {
    do {
        if (auto& leaving = replies_.objects().leaving(); leaving.has_any()) {
            auto sent = leaving.wait();
            co_await sent;
        }
        next_turn next;
        co_await next;
        co_await yield(); // behind the readers that this turn has woken
        auto& here = loop::current();
        const auto began = here.coarse_now();
        while (!backlog_.empty() && here.coarse_now() - began < limit::call_turn) {
            for (std::size_t i = 0; i < std::min(backlog_.size(), backlog::read_ahead); ++i)
                if (const auto soon = backlog_.objects_of(i)) replies_.objects().read(soon);
            if (const auto objects = backlog_.objects_of(0);
                objects != nullptr && !objects->ready.is_set()) {
                co_await objects->ready.wait();
                continue; // who sent it may have gone meanwhile
            }
            auto one = backlog_.take();
            if (!is_closed_) run_waiting(one); // else its driver has gone
        }
        backlog_.read_on(callers_);
    } while (!backlog_.empty());
    backlog_.close(callers_);
}

/// A call that has waited behind others. It may have been cancelled meanwhile.
SKEIN_INLINE void executor::run_waiting(arrival& one) {
    peer& from = *one.from;
    try {
        if (one.is_drop) {
            actors_.drop(actor_of(one.body, from.who));
            return;
        }
        const bool is_wanted = !backlog::was_cancelled(one);
        if (one.objects && one.objects->why && is_wanted) {
            if (replies_.objects().has_lost_store())
                return; // this worker ends, and it has not begun
            with_form(one, [&](auto& call) {
                if (call.open(from, one.slot, true)) refuse_objects(from, one.slot, call);
            });
            return;
        }
        with_form(one, [&](auto& call) {
            if (is_wanted) return run(one.from, one.slot, call, {});
            if (!call.open(from, one.slot, true)) return;
            error why(errc::cancelled, call.fn().name + " was cancelled; it did not run");
            replies_.reply_failure(from, one.slot, {std::move(why), nullptr});
        });
    } catch (
        const error& e) { // no call: as in the handler of a link, or of this process's own frames
        if (from.role == peer_role::here)
            replies_.reply_failure(from, one.slot, {e, nullptr});
        else
            from.abort(e);
    }
}

// ---- running -----------------------------------------------------------------------------------

/// A plain call that has just arrived lets coroutine calls of its actor go first that have not
/// started yet; coroutine calls start from the run queue, so in order.
template <class Form>
void executor::run(const std::shared_ptr<peer>& from, slot_id id, Form& call,
                   counted_ptr<actor_box> box) {
    if (!call.open(*from, id, !box)) return;
    const auto& fn = call.fn();
    if (call.is_method() && !box) {
        box = box_for(*from, id, fn, call.target());
        if (!box) return;
        call.check(*from, *box);
        const bool is_full = fn.group != 0 && box->gate_of(fn.group).is_full();
        if ((box->not_started > 0 || is_full) && !fn.is_coroutine)
            return hold_back(from, id, call, std::move(box));
    }
    if (box && box->over != nullptr) return reply_over(*from, id, fn, *box);
    ++executed_;
    if (proc::detail::threads_vary) [[unlikely]]
        proc::detail::use_threads(call.cpus());
    incoming_call in{*this,
                     from,
                     id,
                     fn,
                     call.target(),
                     call.arguments(),
                     std::move(box),
                     call.has_terms(),
                     call.objects()};
    const executing_mark by(home_->self);
    const task_context::use under(&context_for(call.who(), call.target(), fn));
    call.run(in);
}

[[gnu::cold, gnu::noinline]] SKEIN_INLINE failure actor_is_gone(const function_record& fn,
                                                                std::string_view actor) {
    error gone(errc::not_found, fmt::format("{} did not run: {} is gone", fn.name, actor));
    gone.with_hint("its last handle was dropped, or it was killed, or has left");
    return {std::move(gone), nullptr};
}

/// The actor of a call of a method. None: it is gone, and the caller has been told.
SKEIN_INLINE counted_ptr<actor_box> executor::box_for(peer& from, slot_id id,
                                                      const function_record& fn, actor_id actor) {
    const auto* const found = actors_.find(actor);
    if (found == nullptr) [[unlikely]] {
        replies_.reply_failure(from, id, actor_is_gone(fn, actors_.title_of(actor)));
        return {};
    }
    if (&(*found)->type != fn.actor && (*found)->type != *fn.actor) [[unlikely]]
        throw wrong_actor(from.who, fn, actor, (*found)->type);
    return *found;
}

/// What a call that runs now belongs to. That of the last one serves again if nothing has kept it.
SKEIN_INLINE call_context& executor::context_for(const trace_context& who, actor_id actor,
                                                 const function_record& fn) {
    if (!spare_ || spare_->uses() > 1) spare_ = counted_ptr(new call_context(home_));
    spare_->who = who;
    spare_->fn = &fn;
    spare_->actor = actor;
    return *spare_;
}

/// A plain call that may not start yet. Where it may wait for long, it can be cancelled, and its
/// caller hears that it is held.
template <class Form>
void executor::hold_back(const std::shared_ptr<peer>& from, slot_id id, Form& call,
                         counted_ptr<actor_box> box) {
    ++box->not_started;
    const auto& fn = call.fn();
    const auto kept = [&] {
        arrival one{from, id, {}, false, {}, {}};
        call.keep(one);
        return one;
    };
    if (box->gate_of(fn.group).limit == 0) {
        calls_.spawn(run_later(kept(), std::move(box)));
        return;
    }
    const task_context::use under(&context_for(call.who(), call.target(), fn));
    begin_call(from, id, true, run_in_turn(kept(), &fn, std::move(box)));
    tell_soon(from, id);
}

SKEIN_INLINE task<void> executor::run_later(arrival one, counted_ptr<actor_box> box) {
    --box->not_started;
    with_form(one, [&](auto& call) { run(one.from, one.slot, call, std::move(box)); });
    co_return;
}

SKEIN_INLINE task<void> executor::run_in_turn(arrival one, const function_record* fn,
                                              counted_ptr<actor_box> box) {
    auto turn = take_turn(one.from, one.slot, fn, box);
    const bool may_start = co_await turn;
    if (!may_start) co_return;
    const start_gate::seat seat(fn->group != 0 ? &box->gate_of(fn->group) : nullptr);
    with_form(one, [&](auto& call) { run(one.from, one.slot, call, box); });
}

SKEIN_INLINE void executor::start(incoming_call& call, task<void> work) {
    const bool waits = call.box && call.box->gate_of(call.fn.group).limit != 0;
    begin_call(call.from, call.slot, waits, std::move(work));
    tell_soon(call.from, call.slot);
}

SKEIN_INLINE void executor::begin_call(const std::shared_ptr<peer>& from, slot_id id, bool waits,
                                       task<void> work) {
    if (from->inbound.running.find(id) != nullptr)
        throw error(errc::malformed, fmt::format("a second call {} from {}", id, from->who));
    std::unique_ptr<running_call> made(new running_call);
    auto& running = *made;
    running.context = spare_;
    running.waits = waits;
    running.news = replies_.news().of_new_call();
    from->inbound.running.enter(id, std::move(made));
    calls_.spawn(run_call(from, id, &running, std::move(work)));
}

SKEIN_INLINE task<void> executor::run_call(std::shared_ptr<peer> from, slot_id id,
                                           running_call* running, task<void> work) {
    auto* const outer = co_await skein::detail::current_cancel{};
    running->stop.link(outer);
    try {
        skein::detail::await_under<void> inner(std::move(work), &running->stop);
        co_await inner;
    } catch (...) { // it could not even say so: the others that run here must not end for that
        from->abort(to_error(std::current_exception()));
    }
    from->inbound.running.erase(id);
}

/// Whether a call has started, or has to wait, is told to its caller, unless it is over by then.
SKEIN_INLINE void executor::tell_soon(const std::shared_ptr<peer>& to, slot_id id) {
    fresh_.emplace_back(to, id);
    if (fresh_.size() == 1) calls_.spawn(tell_started());
}

/// Runs after the first steps of the calls that have just started: those that are not done by then
/// have suspended, or wait for others before they start, and their submitter is told.
SKEIN_INLINE task<void> executor::tell_started() {
    co_await yield();
    for (const auto& [to, id] : std::exchange(fresh_, {})) {
        auto* const found = to->inbound.running.find(id);
        if (found == nullptr || (*found)->told || !to->is_open()) continue;
        auto& is_told = (*found)->waits ? (*found)->held : (*found)->told;
        if (std::exchange(is_told, true)) continue;
        to->send((*found)->waits ? message_held : message_started, 0, id.value(), {});
    }
    co_return;
}

SKEIN_INLINE error cancelled_in_line(const function_record& fn, std::uint32_t limit) {
    auto text = fn.name + " was cancelled; it did not run";
    if (fn.group != 0)
        text += fmt::format(": it waited for others of group \"{}\", which takes {} at a time",
                            fn.group_name, limit);
    return error(errc::cancelled, std::move(text));
}

SKEIN_INLINE task<bool> executor::take_turn(std::shared_ptr<peer> from, slot_id id,
                                            const function_record* fn, counted_ptr<actor_box> box) {
    auto& gate = box->gate_of(fn->group);
    const bool takes_seat = fn->is_coroutine || fn->group != 0;
    start_gate::turn turn(gate, takes_seat);
    bool cancelled = false;
    try {
        co_await turn;
    } catch (const error&) {
        cancelled = true;
    }
    --box->not_started;
    if (!cancelled && box->over == nullptr) {
        auto* const found = from->inbound.running.find(id);
        if (found != nullptr && fn->is_coroutine) { // a plain call replies at once
            (*found)->waits = false;
            tell_soon(from, id);
        }
        co_return true;
    }
    if (!cancelled && takes_seat) { // it has its seat, and gives it back
        const start_gate::seat unused(&gate);
    }
    if (box->over != nullptr)
        reply_over(*from, id, *fn, *box);
    else
        replies_.reply_failure(*from, id, {cancelled_in_line(*fn, gate.limit), nullptr});
    co_return false;
}

SKEIN_INLINE void executor::reply_over(peer& to, slot_id id, const function_record& fn,
                                       const actor_box& box) {
    replies_.reply_failure(
        to, id,
        {error(errc::not_found, fmt::format("{} did not run: {} {}", fn.name,
                                            actor_title(box.id, box.name, &box.type),
                                            box.over != nullptr ? box.over : "is gone")),
         nullptr});
}

SKEIN_INLINE void executor::kill(actor_id id) {
    if (!actors_.kill(id)) return;
    for (auto* const from : callers_)
        from->inbound.running.for_each([&](slot_id, const auto& call) {
            if (call->context->actor == id) call->end(false);
        });
}

} // namespace skein::rt::detail
