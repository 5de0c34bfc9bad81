// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of rt/runtime.hpp: where each frame that comes over a link goes, and
// what becomes of the calls that this process has made.

#include <skein/core/loop.hpp>
#include <skein/rt/detail/direct_state.hpp>
#include <skein/rt/detail/runtime_state.hpp>
#include <skein/rt/detail/runtime_streams.hpp>

#include <utility>

#include <fmt/format.h>

namespace skein::rt {

// A peer has shown that it knows the token, no more: what it says is compared with what it was
// asked. The exceptions that are thrown here end its link.

SKEIN_INLINE void runtime::on_frame(const std::shared_ptr<peer>& from, const net::frame_view& f) {
    if (from->role != detail::peer_role::program) return on_direct_frame(from, f);
    switch (f.kind) {
    case detail::message_reply: return on_reply(*from, f);
    case detail::message_item: return streams::on_item(*this, *from, f);
    case detail::message_taken: return streams::on_taken(*from, f);
    case detail::message_values_wanted:
        return object_replies::values_wanted(*this, *from, slot_id(f.id));
    case detail::message_values: return object_replies::values(*this, *from, f);
    case detail::message_call:
        return state_->upstream == nullptr ? forward(*from, f) : state_->executor.arrived(from, f);
    case detail::message_started: return credits::on_started(*this, *from, slot_id(f.id));
    case detail::message_held: return credits::on_held(*this, *from, slot_id(f.id));
    case detail::message_passed:
        if (state_->upstream != nullptr) break;
        return credits::on_passed(*this, *from, slot_id(f.id));
    case detail::message_cancel:
        return on_cancel(*from, slot_id(f.id), (f.flags & detail::flag_by_force) != 0);
    case detail::message_drop:
        if (state_->upstream == nullptr) break;
        return state_->executor.dropped(from, f.body);
    case detail::message_snapshot:
    case detail::message_hold:
    case detail::message_release:
    case detail::message_kill:
    case detail::message_left:
    case detail::message_find:
        if (state_->upstream == nullptr) return state_->actors.on_frame(*from, f);
        if (f.kind != detail::message_kill) break;
        return state_->executor.kill(detail::actor_of(f.body, from->who));
    case detail::message_group:
        if (state_->upstream != nullptr) break;
        return state_->groups.on_question(*from, slot_id(f.id), f.body);
    default: break;
    }
    if (state_->upstream == nullptr ? on_worker_asks(*from, f) : on_driver_says(*from, f)) return;
    throw error(errc::malformed,
                fmt::format("frame of unknown kind {} from {}", f.kind, from->who));
}

namespace detail {

[[noreturn, gnu::cold, gnu::noinline]] SKEIN_INLINE void refuse_answer(const peer& from,
                                                                       const call_base& call) {
    throw error(errc::malformed,
                fmt::format("{} answers for {}, which was not sent to it", from.who, call.name()));
}

} // namespace detail

/// The call of an id, which must have been sent over this link; nullptr if it is not known any
/// more.
SKEIN_INLINE detail::call_base* runtime::call_at(const peer& from, slot_id id) {
    const auto index = static_cast<std::uint32_t>(id.value());
    if (index >= state_->slots.size() || state_->slots[index].generation != id.value() >> 32)
        return nullptr;
    auto* call = state_->slots[index].call.get();
    if (call != nullptr && call->on != &from) [[unlikely]]
        detail::refuse_answer(from, *call);
    return call;
}

SKEIN_INLINE void runtime::on_reply(peer& from, const net::frame_view& f) {
    if (!detail::is_outcome(f.flags)) [[unlikely]]
        throw error(errc::malformed,
                    fmt::format("a reply that is neither value nor failure from {}", from.who));
    auto* const call = call_at(from, slot_id(f.id));
    if (call == nullptr) {
        byte_span body = f.body;
        return state_->replies.objects().drop(from.incarnation, f.flags, body);
    }
    if (streams::is_stream(*call) || (f.flags & detail::reply_counted) != 0) [[unlikely]] {
        net::frame_view end = f;
        if (!streams::open_end(from, *call, end, false)) return;
        return settle(from, state_->take_out(static_cast<std::uint32_t>(f.id)), end);
    }
    settle(from, state_->take_out(static_cast<std::uint32_t>(f.id)), f);
}

/// A call has its answer.
SKEIN_INLINE void runtime::settle(peer& from, counted_ptr<detail::call_base> call,
                                  const net::frame_view& f) {
    if (call->kind == detail::call_kind::task) account(from, *call);
    const auto queue = credits::give(*state_, from, *call);
    if (call->kind == detail::call_kind::create && state_->upstream == nullptr)
        state_->actors.settle(from, *call, f.flags == detail::reply_failed);
    if (!call->is_done()) {
        if (f.flags == detail::reply_ok) {
            call->finish_with_bytes(f.body);
        } else if (f.flags == detail::reply_lends) {
            take_reply(from, *call, f);
        } else if (f.flags != detail::reply_failed) {
            object_replies::take(*this, from, *call, f);
        } else {
            auto why = detail::decode_failure(f.body);
            if (!runs_again(*call, why)) call->fail(std::move(why));
        }
    } else if (state_->upstream != nullptr) {
        give_back(*call, from.incarnation, f);
    } else {
        byte_span body = f.body;
        state_->replies.objects().drop(from.incarnation, f.flags, body);
    }
    if (queue) drain(*queue);
    if (state_->dispatch.has_waiting()) pump();
    if (state_->upstream == nullptr && from.room.busy == 0 && state_->dispatch.book().is_crowded())
        feed(*from.room.for_whom().link);
}

/// Driver: whether a task goes to the end of its line because of how it failed.
SKEIN_INLINE bool runtime::runs_again(detail::call_base& call, failure& why) {
    if (state_->upstream != nullptr || !call.rare || !call.rare->retry_on || call.is_spent ||
        detail::is_unwanted(call) || !call.rare->retry_on->has(why))
        return false;
    auto& attempts = call.rare->failed_attempts;
    ++attempts;
    const bool is_over = state_->closing || state_->given_up;
    if (call.retries_left == 0 || is_over) {
        auto hint = why.what.hint().empty() ? std::string() : why.what.hint() + "; ";
        hint += "it failed " + detail::times(attempts);
        hint += call.retries_left == 0 ? ", and has no retries left"
                                       : ", and runs no more: its program takes no more tasks";
        why.what.with_hint(std::move(hint));
        return false;
    }
    --call.retries_left;
    ++state_->stats.retried;
    call.on = nullptr;
    call.alone = 0;
    call.state = detail::phase::queued;
    call.begin_again();
    place(counted_ptr(&call));
    return true;
}

SKEIN_INLINE void runtime::on_cancel(peer& from, slot_id id, bool by_force) {
    state_->executor.cancel(from, id, by_force);
    if (const auto found = from.forwarded.find(id); found != from.forwarded.end())
        cancel(*found->second, by_force);
    else if (state_->upstream == nullptr)
        state_->groups.cancel(from, id);
}

namespace detail {

/// Of a call that says nothing of its place: that of the group of the call that has made it, if
/// children are to be there.
[[nodiscard]] inline sched::place place_of_children(const sched::demand_table& demands,
                                                    const forwarded_call& call) {
    const auto its = call.origin().room.demand;
    if (!its || !demands.at(its).captures) return {};
    return {sched::place::kind::group, {}, demands.at(its).group, -1, true};
}

/// Whether a demand's text says more than where: "@@*" does not.
[[nodiscard]] inline bool has_needs(std::string_view text) {
    return !text.empty() && (!text.starts_with('@') ||
                             text.size() != 1 + sched::demand_table::label_in(text).size());
}

} // namespace detail

/// As a worker asks for it.
SKEIN_INLINE void runtime::set_demand(detail::call_base& call, const detail::call_head& head) {
    auto& demands = state_->dispatch.demands();
    const bool for_life = call.kind == detail::call_kind::create;
    const bool all_own = state_->dispatch.serves_apart(); // then there are no workers for all
    using kind = sched::place::kind;
    auto place = sched::place::from_text(sched::demand_table::label_in(head.demand));
    if (place.is(kind::any))
        place = detail::place_of_children(demands, static_cast<detail::forwarded_call&>(call));
    if (place.is(kind::anywhere)) place = {};
    const auto& caller = static_cast<detail::forwarded_call&>(call).origin();
    if (auto why = state_->groups.table().resolve(caller.number, place)) {
        call.extra().bad_options = std::move(why);
        return;
    }
    if (place.is(kind::actor)) {
        call.extra().beside = place.actor;
        place = {};
    }
    const bool has_text = detail::has_needs(head.demand) || !place.is(kind::any);
    const auto text = head.demand.empty() && !for_life && head.cpus > 0
                          ? fmt::format("cpu={}", head.cpus)
                          : std::string(head.demand);
    const auto number =
        has_text              ? demands.number_of_text(text, for_life, place.to_text())
        : for_life && all_own ? demands.number(sched::resources{}, {}, true)
        : for_life            ? demands.number(std::uint16_t{0})
                   : demands.number(all_own && head.cpus == 0 ? std::uint16_t{1} : head.cpus);
    if (!number) {
        call.extra().bad_options = number.error();
        return;
    }
    call.demand = *number;
    if (!for_life) call.cpus = demands.at(*number).cpus;
    join_group(call);
    if (for_life) state_->actors.keep_demand(call);
}

/// Driver: a call of a worker goes on to where it belongs.
SKEIN_INLINE void runtime::forward(peer& from, const net::frame_view& f) {
    wire::reader in(f.body);
    detail::call_head head;
    const auto& fn = detail::read_head(in, head, from, loop::current().now());
    if (head.who.id.value().incarnation != from.incarnation)
        throw error(errc::malformed, fmt::format("{} sends a call in another's name", from.who));
    if (head.kind == detail::call_kind::method) {
        const auto* const found = state_->actors.find(head.target);
        if (found != nullptr && found->type != nullptr && *found->type != *fn.actor)
            throw detail::wrong_actor(from.who, fn, head.target, *found->type);
    }
    if (from.forwarded.contains(slot_id(f.id)))
        throw error(errc::malformed, fmt::format("a second call {} from {}", f.id, from.who));
    if (head.kind == detail::call_kind::create &&
        !state_->actors.admit(from, slot_id(f.id), fn, head, in))
        return;
    std::shared_ptr<peer> origin;
    for (const auto& l : state_->links)
        if (l.get() == &from) origin = l;
    if (!origin) return;
    counted_ptr<detail::call_base> call(new detail::forwarded_call(
        state_->replies, state_->dispatch.cores(), origin, slot_id(f.id), head.who));
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
    ++from.room.calls_made;
    state_->dispatch.cores().begin_wait(from.room, head.who.parent);
    if (prepare(*call)) {
        call->state = detail::phase::queued;
        place(std::move(call));
    }
    if (state_->dispatch.waits()) pump_leases(); // the caller may have left a core to others
}

} // namespace skein::rt
