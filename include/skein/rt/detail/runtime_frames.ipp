// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of rt/runtime.hpp: the frames that come over links, and the calls that run here.

#include <skein/core/cancel.hpp>
#include <skein/core/constants.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/sleep.hpp>
#include <skein/core/type_name.hpp>
#include <skein/rt/detail/direct_books.hpp>
#include <skein/rt/detail/runtime_books.hpp>

#include <coroutine>
#include <exception>
#include <utility>

#include <fmt/format.h>

namespace skein::rt {

// A peer has shown that it knows the token, no more: what it says is compared with what it was asked.
// The exceptions that are thrown here end its link.

SKEIN_INLINE void runtime::on_frame(const std::shared_ptr<peer>& from, const net::frame_view& f) {
    if (from->role != detail::peer_role::program) return on_direct_frame(from, f);
    switch (f.kind) {
    case detail::message_reply: return on_reply(*from, f);
    case detail::message_call:
        return books_->upstream == nullptr ? forward(*from, f) : arrived(from, f);
    case detail::message_started: return credits::on_started(*this, *from, slot_id(f.id));
    case detail::message_held: return credits::on_held(*this, *from, slot_id(f.id));
    case detail::message_passed:
        if (books_->upstream != nullptr) break;
        return credits::on_passed(*this, *from, slot_id(f.id));
    case detail::message_cancel:
        return on_cancel(*from, slot_id(f.id), (f.flags & detail::flag_by_force) != 0);
    case detail::message_drop:
        if (books_->upstream == nullptr) break;
        return arrived(from, f);
    case detail::message_snapshot:
    case detail::message_hold:
    case detail::message_release:
    case detail::message_kill:
    case detail::message_left:
    case detail::message_find: return on_actor_frame(*from, f);
    case detail::message_group:
        if (books_->upstream != nullptr) break;
        return group_desk::on_question(*this, *from, f);
    default: break;
    }
    if (books_->upstream == nullptr ? on_worker_asks(*from, f) : on_driver_says(*from, f)) return;
    throw error(errc::malformed,
                fmt::format("frame of unknown kind {} from {}", f.kind, from->who));
}

/// The call of an id, which must have been sent over this link; nullptr if it is not known any more.
SKEIN_INLINE detail::call_base* runtime::call_at(const peer& from, slot_id id) {
    const auto index = static_cast<std::uint32_t>(id.value());
    if (index >= books_->slots.size() || books_->slots[index].generation != id.value() >> 32)
        return nullptr;
    auto* call = books_->slots[index].call.get();
    if (call != nullptr && call->on != &from)
        throw error(errc::malformed, fmt::format("{} answers for {}, which was not sent to it",
                                                 from.who, call->name()));
    return call;
}

SKEIN_INLINE void runtime::on_reply(peer& from, const net::frame_view& f) {
    if (f.flags > detail::reply_lends)
        throw error(errc::malformed,
                    fmt::format("a reply that is neither value nor failure from {}", from.who));
    if (call_at(from, slot_id(f.id)) == nullptr) return;
    settle(from, free_slot(slot_id(f.id)), f);
}

/// A call has its answer.
SKEIN_INLINE void runtime::settle(peer& from, counted_ptr<detail::call_base> call,
                                  const net::frame_view& f) {
    account(from, *call);
    const auto lane = credits::give(*books_, from, *call);
    if (call->kind == detail::call_kind::create && books_->upstream == nullptr)
        settle_create(from, *call, f.flags);
    if (!call->is_done()) {
        if (f.flags == detail::reply_ok) {
            call->finish_with_bytes(f.body);
        } else if (f.flags == detail::reply_lends) {
            take_reply(from, *call, f);
        } else {
            auto why = detail::decode_failure(f.body);
            if (!runs_again(*call, why)) call->fail(std::move(why));
        }
    }
    if (lane) drain(*lane);
    if (!books_->queue.empty() || !books_->creations.empty() || books_->leases.waits()) pump();
    if (from.busy == 0 && books_->upstream == nullptr && books_->links.size() > 1) feed(from);
}

/// Driver: whether a task goes to the end of its line because of how it failed.
SKEIN_INLINE bool runtime::runs_again(detail::call_base& call, failure& why) {
    if (books_->upstream != nullptr || !call.rare || !call.rare->retry_on ||
        detail::is_unwanted(call) || !call.rare->retry_on->has(why))
        return false;
    auto& attempts = call.rare->failed_attempts;
    ++attempts;
    const bool is_over = books_->closing || books_->given_up;
    if (call.retries_left == 0 || is_over) {
        auto hint = why.what.hint().empty() ? std::string() : why.what.hint() + "; ";
        hint += attempts == 1 ? "it failed once" : fmt::format("it failed {} times", attempts);
        hint += call.retries_left == 0 ? ", and has no retries left"
                                       : ", and runs no more: its program takes no more tasks";
        why.what.with_hint(std::move(hint));
        return false;
    }
    --call.retries_left;
    ++books_->stats.retried;
    call.on = nullptr;
    call.alone = 0;
    call.state = detail::phase::queued;
    place(counted_ptr(&call));
    return true;
}

SKEIN_INLINE void runtime::on_cancel(peer& from, slot_id id, bool by_force) {
    if (auto* const found = from.running.find(id)) {
        auto& call = **found;
        call.stop.request();
        call.context->cancel_children(by_force);
    } else if (books_->has_backlog) {
        from.unwanted.insert(id);
    }
    if (const auto found = from.forwarded.find(id); found != from.forwarded.end())
        cancel(*found->second, by_force);
}

namespace detail {

/// The function that a call names; its head must fit it.
SKEIN_INLINE const function_record& read_head(wire::reader& in, call_head& head, const peer& from,
                                              time_point came) {
    const auto& who = from.who;
    const bool good = head.decode(in, from.incarnation, came);
    const auto* fn = good ? registry::instance().at(head.function) : nullptr;
    if (fn == nullptr)
        throw error(errc::malformed, fmt::format("a call that cannot be read from {}", who));
    const auto wanted = fn->is_constructor     ? call_kind::create
                        : fn->actor != nullptr ? call_kind::method
                                               : call_kind::task;
    if (head.kind != wanted)
        throw error(errc::malformed,
                    fmt::format("{} sends a call of {} that is none of its kind", who, fn->name));
    return *fn;
}

SKEIN_INLINE error wrong_actor(const std::string& who, const function_record& fn, actor_id actor,
                               const std::type_info& type) {
    return error(errc::malformed, fmt::format("{} calls {} of actor {}, which is a {}", who,
                                              fn.name, actor, readable_name(type.name())));
}

} // namespace detail

namespace detail {

/// Of a call that says nothing of its place: that of the group of the call that has made it, if children are to be there.
[[nodiscard]] inline std::string label_of_children(const demand_table& demands,
                                                   const forwarded_call& call) {
    const auto kind = static_cast<std::uint16_t>(call.origin().kind);
    if (kind == 0 || !demands.at(kind).captures) return {};
    return group_label(demands.at(kind).group, -1) + "+";
}

} // namespace detail

/// As a worker asks for it.
SKEIN_INLINE void runtime::set_demand(detail::call_base& call, const detail::call_head& head) {
    auto& demands = books_->leases.demands;
    const bool for_life = call.kind == detail::call_kind::create;
    const bool all_own = books_->leases.all_own; // then there are no workers for all
    std::string label(detail::demand_table::label_in(head.demand));
    if (label.empty())
        label = detail::label_of_children(demands, static_cast<detail::forwarded_call&>(call));
    if (label == detail::anywhere_label) label.clear();
    if (auto why = group_desk::resolve_label(*this, label)) {
        call.extra().bad_options = std::move(why);
        return;
    }
    if (actor_id beside; detail::parse_actor_label(label, beside)) {
        call.extra().beside = beside;
        label.clear();
    }
    const bool has_text = !head.demand.empty() || !label.empty();
    const auto text = head.demand.empty() && !for_life && head.cpus > 0
                          ? fmt::format("cpu={}", head.cpus)
                          : std::string(head.demand);
    const auto number =
        has_text              ? demands.number_of_text(text, for_life, label)
        : for_life && all_own ? demands.number(resources{}, {}, true)
        : for_life            ? demands.number(std::uint16_t{0})
                   : demands.number(all_own && head.cpus == 0 ? std::uint16_t{1} : head.cpus);
    if (!number) {
        call.extra().bad_options = number.error();
        return;
    }
    call.shape = *number;
    if (!for_life) call.cpus = demands.at(*number).cpus;
    group_desk::join(*this, call);
    if (for_life) keep_demand(call);
}

/// Driver: a call of a worker goes on to where it belongs.
SKEIN_INLINE void runtime::forward(peer& from, const net::frame_view& f) {
    wire::reader in(f.body);
    detail::call_head head;
    const auto& fn = detail::read_head(in, head, from, loop::current().now());
    if (head.who.id.value().incarnation != from.incarnation)
        throw error(errc::malformed, fmt::format("{} sends a call in another's name", from.who));
    if (head.kind == detail::call_kind::method) {
        const auto* const found = books_->actors.find(head.target);
        if (found != nullptr && found->type != nullptr && *found->type != *fn.actor)
            throw detail::wrong_actor(from.who, fn, head.target, *found->type);
    }
    if (from.forwarded.contains(slot_id(f.id)))
        throw error(errc::malformed, fmt::format("a second call {} from {}", f.id, from.who));
    if (head.kind == detail::call_kind::create && !admit_actor(from, f, fn, head, in)) return;
    std::shared_ptr<peer> origin;
    for (const auto& l : books_->links)
        if (l.get() == &from) origin = l;
    if (!origin) return;
    counted_ptr<detail::call_base> call(
        new detail::forwarded_call(*this, books_->leases, origin, slot_id(f.id), head.who));
    call->fn = &fn;
    call->kind = head.kind;
    call->target = head.target;
    if (head.kind != detail::call_kind::method) set_demand(*call, head);
    call->retries_left = head.kind == detail::call_kind::task ? head.retries : 0;
    call->nested = true;
    if (!head.retry_on.empty()) detail::keep_failures(*call, head.retry_on);
    call->body = f.take_body();
    if (head.who.until != time_point::max()) call->extra().until = head.who.until;
    from.forwarded[slot_id(f.id)] = call.get();
    books_->leases.begin_wait(from, head.who.parent);
    if (prepare(*call)) {
        call->state = detail::phase::queued;
        place(std::move(call));
    }
    if (books_->leases.waits()) pump_leases(); // the caller may have left a core to others
}

SKEIN_INLINE void runtime::reply(peer& to, slot_id id, detail::encoder encode) {
    if (!to.is_open()) return;
    books_->scratch.clear();
    auto& lent = books_->actors.lent;
    lent.clear();
    {
        struct replying_guard {
            runtime* before = replying_;
            ~replying_guard() { replying_ = before; }
        } const guard;
        replying_ = this;
        encode(books_->scratch);
    }
    if (lent.empty()) return send_scratch(to, detail::reply_ok, id);
    if (to.role == detail::peer_role::here) return lend_here(to, id);
    detail::lending_reply::append(books_->scratch, lent);
    send_scratch(to, detail::reply_lends, id);
}

SKEIN_INLINE void runtime::pass_reply(peer& to, slot_id id, byte_span value, bool lends) {
    if (!to.is_open()) return;
    books_->scratch.clear();
    books_->scratch.raw(value);
    send_scratch(to, lends ? detail::reply_lends : detail::reply_ok, id);
}

SKEIN_INLINE void runtime::reply_failure(peer& to, slot_id id, const failure& why) {
    if (!to.is_open()) return;
    books_->scratch.clear();
    detail::encode_failure(books_->scratch, why);
    send_scratch(to, detail::reply_failed, id);
}

/// A reply. The memory of a large one goes with it, so that it is given back.
SKEIN_INLINE void runtime::send_scratch(peer& to, std::uint16_t outcome, slot_id id) {
    if (books_->upstream != nullptr && must_relay(to, outcome)) return relay(to, outcome, id);
    if (books_->scratch.size() < limit::inline_bytes)
        return to.send(detail::message_reply, outcome, id.value(), books_->scratch.bytes());
    net::frame f;
    f.kind = detail::message_reply;
    f.flags = outcome;
    f.id = id.value();
    f.body = std::move(books_->scratch).take();
    to.send(std::move(f));
}

SKEIN_INLINE void runtime::reply_thrown(peer& to, slot_id id, const function_record& fn) {
    reply_failure(to, id, detail::failure_of(std::current_exception(), fn, books_->name));
}

/// Worker: a call or drop has come. Calls run in order, here and now, until they have taken so long that
/// their replies should leave and a cancellation should be heard: the rest waits for the next turn.
SKEIN_INLINE void runtime::arrived(const std::shared_ptr<peer>& from, const net::frame_view& f) {
    const bool is_drop = f.kind == detail::message_drop;
    if (books_->has_backlog) {
        books_->backlog_bytes += f.body.size();
        books_->backlog.push_back(
            {from, slot_id(f.id), to_buffer(f.body), is_drop, loop::current().now(), {}});
        books_->backlog_full = books_->backlog_full || books_->backlog_bytes > limit::backlog_bytes;
        if (books_->backlog_full && from->wire && !std::exchange(from->is_paused, true))
            from->wire->pause_reading();
        return;
    }
    if (is_drop) {
        books_->boxes.erase(detail::actor_of(f.body, from->who));
        return;
    }
    begin_turn();
    execute(from, slot_id(f.id), f.body, nullptr, loop::current().now());
    end_turn();
}

/// A call runs; perhaps it is the first one of this turn of the loop.
SKEIN_INLINE void runtime::begin_turn() {
    if (books_->in_turn.is_linked()) return;
    auto& here = loop::current();
    books_->turn_began = here.coarse_now();
    here.at_turn_end(books_->in_turn);
}

SKEIN_INLINE void runtime::end_turn() {
    const auto lasted = loop::current().coarse_now() - books_->turn_began;
    if (lasted < limit::call_turn || books_->closing) return;
    books_->has_backlog = true;
    books_->calls.spawn(run_backlog());
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
    auto& waiting = books_->backlog;
    do {
        detail::next_turn next;
        co_await next;
        co_await yield(); // behind the readers that this turn has woken
        auto& here = loop::current();
        const auto began = here.coarse_now();
        while (!waiting.empty() && here.coarse_now() - began < limit::call_turn) {
            auto one = std::move(waiting.front());
            waiting.pop_front();
            books_->backlog_bytes -= one.body.size();
            if (books_->closing) continue; // its driver has gone
            if (one.given)
                books_->direct->execute_waiting(std::move(one.given));
            else
                execute_waiting(one);
        }
        if (books_->backlog_bytes < limit::backlog_bytes / 2 &&
            std::exchange(books_->backlog_full, false))
            for_each_caller([](peer& one) {
                if (std::exchange(one.is_paused, false)) one.wire->resume_reading();
            });
    } while (!waiting.empty());
    books_->has_backlog = false;
    for_each_caller([](peer& one) { one.unwanted.clear(); });
}

/// Worker: those whose calls run here.
template <class F>
void runtime::for_each_caller(F what) {
    if (books_->upstream != nullptr) what(*books_->upstream);
    for (const auto& one : books_->direct->callers) what(*one);
    if (books_->direct->here) what(*books_->direct->here);
}

/// A call whose turn has come; it may have been cancelled meanwhile.
SKEIN_INLINE void runtime::execute_waiting(const arrival& one) {
    try {
        if (one.is_drop) {
            books_->boxes.erase(detail::actor_of(one.body, one.from->who));
            return;
        }
        if (one.from->unwanted.erase(one.slot) == 0)
            return execute(one.from, one.slot, one.body, nullptr, one.came);
        wire::reader in(one.body);
        detail::call_head head;
        const auto& fn = detail::read_head(in, head, *one.from, one.came);
        if (!one.from->page.begin()) return credits::pass_by(*one.from, one.slot, head);
        error why(errc::cancelled, fn.name + " was cancelled; it did not run");
        reply_failure(*one.from, one.slot, {std::move(why), nullptr});
    } catch (const error& e) { // no call: as in the handler of a link
        one.from->abort(e);
    }
}

namespace detail {

/// A call of another worker is about to run. Throws if it is none that a worker may send.
SKEIN_INLINE void check_direct(peer& from, slot_id id, const call_head& head,
                               const function_record& fn) {
    if (head.kind != call_kind::method)
        throw error(errc::malformed,
                    fmt::format("{} calls {}, which is no method", from.who, fn.name));
    if (head.who.id.value().incarnation != from.incarnation)
        throw error(errc::malformed, fmt::format("{} sends a call in another's name", from.who));
    if (from.running.find(id) != nullptr)
        throw error(errc::malformed, fmt::format("a second call {} from {}", id, from.who));
}

} // namespace detail

/// Worker: runs one call. box: the actor, if the call has waited for its turn. A plain call that has
/// just arrived lets coroutine calls of its actor go first that have not started yet; coroutine calls
/// start from the run queue, so in order.
SKEIN_INLINE void runtime::execute(const std::shared_ptr<peer>& from, slot_id id, byte_span body,
                                   std::shared_ptr<detail::actor_box> box, time_point came) {
    wire::reader in(body);
    detail::call_head head;
    const auto& fn = detail::read_head(in, head, *from, came);
    if (!box && !from->page.begin()) // its driver has taken it back
        return credits::pass_by(*from, id, head);
    const bool is_direct = from->role == detail::peer_role::accepted;
    if (is_direct && !box) detail::check_direct(*from, id, head, fn);
    if (head.kind == detail::call_kind::method && !box) {
        box = box_for(*from, id, fn, head.target);
        if (!box) return;
        if (is_direct && box->lasts)
            throw error(errc::malformed, fmt::format("{} calls actor {} past the driver, which "
                                                     "keeps its calls",
                                                     from->who, head.target));
        const bool is_full = fn.group != 0 && box->gate_of(fn.group).is_full();
        if ((box->not_started > 0 || is_full) && !fn.is_coroutine)
            return hold_back(from, id, body, head, fn, std::move(box), came);
    }
    if (box && box->over != nullptr) return reply_over(*from, id, fn, *box);
    ++books_->stats.executed;
    detail::incoming_call call{
        *this, from, id, fn, head.target, in, std::move(box), head.retries != 0};
    struct executing_guard {
        runtime* before = executing_;
        ~executing_guard() { executing_ = before; }
    } const guard;
    executing_ = this;
    const task_context::use under(&context_for(head.who, head.target, fn));
    fn.invoke(call);
}

/// The actor of a call of a method. None: it is gone, and the caller has been told.
SKEIN_INLINE std::shared_ptr<detail::actor_box> runtime::box_for(peer& from, slot_id id,
                                                                 const function_record& fn,
                                                                 actor_id actor) {
    const auto* const found = books_->boxes.find(actor);
    if (found == nullptr) {
        const error gone =
            error(errc::not_found, fmt::format("{} did not run: actor {} is gone", fn.name, actor))
                .with_hint("its last handle was dropped, or it was killed, or has left");
        reply_failure(from, id, {gone, nullptr});
        return nullptr;
    }
    if ((*found)->type != *fn.actor) throw detail::wrong_actor(from.who, fn, actor, (*found)->type);
    return *found;
}

/// What a call that runs now belongs to. That of the last one serves again if nothing has kept it.
SKEIN_INLINE detail::call_context& runtime::context_for(const detail::lineage& who, actor_id actor,
                                                        const function_record& fn) {
    auto& spare = books_->spare;
    if (!spare || spare->uses() > 1) spare = counted_ptr(new detail::call_context(books_->anchor));
    spare->who = who;
    spare->fn = &fn;
    spare->actor = actor;
    return *spare;
}

/// A plain call that may not start yet. Where it may wait for long, it can be cancelled.
SKEIN_INLINE void runtime::hold_back(const std::shared_ptr<peer>& from, slot_id id, byte_span body,
                                     const detail::call_head& head, const function_record& fn,
                                     std::shared_ptr<detail::actor_box> box, time_point came) {
    ++box->not_started;
    if (box->gate_of(fn.group).limit == 0) {
        books_->calls.spawn(execute_later(from, id, to_buffer(body), std::move(box), came));
        return;
    }
    const task_context::use under(&context_for(head.who, head.target, fn));
    begin_call(from, id, true,
               execute_in_turn(from, id, to_buffer(body), &fn, std::move(box), came));
    books_->fresh.emplace_back(from, id);
    if (books_->fresh.size() == 1) books_->calls.spawn(tell_started());
}

SKEIN_INLINE task<void> runtime::execute_later(std::shared_ptr<peer> from, slot_id id,
                                               byte_buffer body,
                                               std::shared_ptr<detail::actor_box> box,
                                               time_point came) {
    --box->not_started;
    execute(from, id, body, std::move(box), came);
    co_return;
}

SKEIN_INLINE task<void> runtime::execute_in_turn(std::shared_ptr<peer> from, slot_id id,
                                                 byte_buffer body, const function_record* fn,
                                                 std::shared_ptr<detail::actor_box> box,
                                                 time_point came) {
    auto turn = take_turn(from, id, fn, box);
    const bool may_start = co_await turn;
    if (!may_start) co_return;
    const detail::start_gate::seat seat(fn->group != 0 ? &box->gate_of(fn->group) : nullptr);
    execute(from, id, body, box, came);
}

SKEIN_INLINE void runtime::start(detail::incoming_call& call, task<void> work) {
    const bool waits = call.box && call.box->gate_of(call.fn.group).limit != 0;
    begin_call(call.from, call.slot, waits, std::move(work));
    books_->fresh.emplace_back(call.from, call.slot);
    if (books_->fresh.size() == 1) books_->calls.spawn(tell_started());
}

SKEIN_INLINE void runtime::begin_call(const std::shared_ptr<peer>& from, slot_id id, bool waits,
                                      task<void> work) {
    if (from->running.find(id) != nullptr)
        throw error(errc::malformed, fmt::format("a second call {} from {}", id, from->who));
    std::unique_ptr<detail::running_call> made(new detail::running_call);
    auto& running = *made;
    running.context = books_->spare;
    running.waits = waits;
    from->running.enter(id, std::move(made));
    books_->calls.spawn(run_call(from, id, &running, std::move(work)));
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

/// Runs after the first steps of the calls that have just started: those that are not done by then
/// have suspended, or wait for others before they start, and their submitter is told.
SKEIN_INLINE task<void> runtime::tell_started() {
    co_await yield();
    for (const auto& [to, id] : std::exchange(books_->fresh, {})) {
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
