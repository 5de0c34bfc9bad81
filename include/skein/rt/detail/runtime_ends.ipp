// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of rt/runtime.hpp: how actors end, and what follows each call of one: its
// state is saved, it leaves, the next one starts.

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

SKEIN_INLINE std::string actor_title(actor_id id, std::string_view name,
                                     const std::type_info* type) {
    if (!name.empty()) return fmt::format("actor \"{}\"", name);
    if (type == nullptr) return fmt::format("actor {}", id);
    return fmt::format("actor {}#{}", type_name(*type), id);
}

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
    if (const auto* const box = state_->boxes.find(id); box != nullptr) {
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

/// Worker: nothing of it goes on; a plain call that runs ends as it would.
SKEIN_INLINE void runtime::on_kill(actor_id id) {
    auto* const found = state_->boxes.find(id);
    if (found == nullptr) return;
    (*found)->over = "was killed";
    state_->boxes.erase(id);
    execution::for_each_caller(*state_, [&](peer& from) {
        from.running.for_each([&](slot_id, const auto& call) {
            if (call->context->actor != id) return;
            call->stop.request();
            call->context->cancel_children(false);
        });
    });
}

SKEIN_INLINE void runtime::leave_actor() {
    const auto* const context = detail::call_context::current();
    auto* const found = context != nullptr && context->is_call() && context->actor
                            ? state_->boxes.find(context->actor)
                            : nullptr;
    if (found == nullptr)
        throw error(errc::invalid_argument,
                    "leave_actor() is called by something that is no method of an actor")
            .with_hint("kill(handle) ends an actor from outside");
    if (!(*found)->last) (*found)->last = context->who.id;
}

namespace detail {

/// Its caller hears it now; those of later calls would, when the state is read.
SKEIN_INLINE error state_not_kept(const actor_box& box, const error& why) {
    error out(
        why.code(),
        fmt::format("the call was made, but what {}::save() gives after it cannot be kept: {}",
                    type_name(box.type), why.text()));
    out.with_hint("if its worker dies, the actor is made again as it was when it was last saved; " +
                  why.hint());
    return out;
}

} // namespace detail

SKEIN_INLINE void runtime::method_ended(peer& to, detail::actor_box& box, bool changes) {
    if (box.last && box.last == detail::call_context::current()->who.id && box.over == nullptr) {
        box.over = "has left";
        tell_driver_first();
        if (state_->upstream != nullptr)
            send_actor(*state_->upstream, detail::message_left, box.id);
        state_->boxes.erase(box.id);
        return;
    }
    if (!changes || box.save_every == 0 || box.over != nullptr ||
        ++box.not_saved < box.save_every || !to.is_open())
        return;
    box.not_saved = 0;
    wire::writer saved;
    try {
        box.save(saved);
    } catch (const error& e) {
        if (e.code() != errc::too_large) throw; // save() has thrown
        throw detail::state_not_kept(box, e);
    }
    constexpr std::size_t head = std::size_t{64} << 10; // of the message that makes it again
    if (saved.size() + box.made_from + head > limit::frame_bytes)
        throw detail::state_not_kept(
            box, error(errc::too_large,
                       fmt::format("it has {} bytes and the actor's arguments {}, together more "
                                   "than one message takes",
                                   saved.size(), box.made_from)));
    wire::writer body;
    detail::put_actor(body, box.id);
    body.raw(saved.bytes());
    net::frame f;
    f.kind = detail::message_snapshot;
    f.body = std::move(body).take();
    to.send(std::move(f));
}

SKEIN_INLINE void runtime::method_failed(peer& to, detail::actor_box& box, bool changes) noexcept {
    try {
        method_ended(to, box, changes);
    } catch (...) {
        try {
            logging::warn("rt", fmt::format("the state of {} was not saved: {}",
                                            detail::actor_title(box.id, box.name, &box.type),
                                            to_error(std::current_exception()).what()));
        } catch (...) { // no memory for a line
        }
    }
}

SKEIN_INLINE result<void> runtime::set_terms(detail::actor_box& box,
                                             const detail::actor_terms& terms, byte_span snapshot) {
    box.gate.limit = terms.max_concurrency;
    box.name = terms.name;
    box.lasts = terms.restarts != 0;
    if (terms.restarts != 0 && box.is_restorable()) box.save_every = terms.snapshot_every;
    if (!terms.has_snapshot) return {};
    wire::reader in(snapshot);
    auto loaded = box.load(in);
    if (loaded && !in.finish()) return in.status();
    return loaded;
}

SKEIN_INLINE void runtime::reply_over(peer& to, slot_id id, const function_record& fn,
                                      const detail::actor_box& box) {
    reply_failure(
        to, id,
        {error(errc::not_found, fmt::format("{} did not run: {} {}", fn.name,
                                            detail::actor_title(box.id, box.name, &box.type),
                                            box.over != nullptr ? box.over : "is gone")),
         nullptr});
}

namespace detail {

SKEIN_INLINE error cancelled_in_line(const function_record& fn, std::uint32_t limit) {
    auto text = fn.name + " was cancelled; it did not run";
    if (fn.group != 0)
        text += fmt::format(": it waited for others of group \"{}\", which takes {} at a time",
                            fn.group_name, limit);
    return error(errc::cancelled, std::move(text));
}

} // namespace detail

SKEIN_INLINE task<bool> runtime::take_turn(std::shared_ptr<peer> from, slot_id id,
                                           const function_record* fn,
                                           counted_ptr<detail::actor_box> box) {
    auto& gate = box->gate_of(fn->group);
    const bool takes_seat = fn->is_coroutine || fn->group != 0;
    detail::start_gate::turn turn(gate, takes_seat);
    bool cancelled = false;
    try {
        co_await turn;
    } catch (const error&) {
        cancelled = true;
    }
    --box->not_started;
    if (!cancelled && box->over == nullptr) {
        auto* const found = from->running.find(id);
        if (found != nullptr && fn->is_coroutine) { // a plain call replies at once
            (*found)->waits = false;
            tell_soon(from, id);
        }
        co_return true;
    }
    if (!cancelled && takes_seat) { // it has its seat, and gives it back
        const detail::start_gate::seat unused(&gate);
    }
    if (box->over != nullptr)
        reply_over(*from, id, *fn, *box);
    else
        reply_failure(*from, id, {detail::cancelled_in_line(*fn, gate.limit), nullptr});
    co_return false;
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
