// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of rt/runtime.hpp: how actors are made and found by name, and the frames about
// them. Who holds them is in runtime_handles.ipp, how they end in runtime_ends.ipp, the loss of a
// worker in runtime_restarts.ipp.

#include <skein/core/check.hpp>
#include <skein/core/known_names.hpp>
#include <skein/core/log.hpp>
#include <skein/core/type_name.hpp>
#include <skein/rt/detail/runtime_state.hpp>
#include <skein/wire/decode.hpp>
#include <skein/wire/encode.hpp>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace skein::rt {

namespace detail {

/// nullptr: none is set.
SKEIN_INLINE std::unique_ptr<actor_terms> terms_of(const actor_options& how) {
    SKEIN_CHECK(how.restarts >= -1, ".restarts = {} is not a number of times", how.restarts);
    SKEIN_CHECK(how.call_retries >= 0 && how.call_retries < 65536,
                ".call_retries = {} is not a number of times", how.call_retries);
    SKEIN_CHECK(how.snapshot_every >= 1, ".snapshot_every = {} is not a number of calls",
                how.snapshot_every);
    SKEIN_CHECK(how.max_pending >= 0 && how.max_concurrency >= 0,
                ".max_pending = {}, .max_concurrency = {}: they cannot be less than none",
                how.max_pending, how.max_concurrency);
    SKEIN_CHECK(how.name.size() <= actor_terms::longest_name,
                "the name of an actor has {} bytes, at most {} are allowed", how.name.size(),
                actor_terms::longest_name);
    SKEIN_CHECK(!how.get_if_exists || !how.name.empty(), ".get_if_exists needs a .name");
    if (how.restarts == 0 && how.max_pending == 0 && how.max_concurrency == 0 && how.name.empty())
        return nullptr;
    auto terms = std::make_unique<actor_terms>();
    terms->restarts = how.restarts;
    terms->call_retries = static_cast<std::uint16_t>(how.call_retries);
    terms->snapshot_every = static_cast<std::uint32_t>(how.snapshot_every);
    terms->max_pending = static_cast<std::uint32_t>(how.max_pending);
    terms->max_concurrency = static_cast<std::uint32_t>(how.max_concurrency);
    terms->name = how.name.view();
    terms->get_if_exists = how.get_if_exists;
    terms->is_detached = how.detached;
    return terms;
}

SKEIN_INLINE error wrong_type(std::string_view name, const char* is, const char* wanted) {
    return error(errc::mismatch, fmt::format("actor \"{}\" is a {}, not a {}", name,
                                             readable_name(is), readable_name(wanted)))
        .with_hint("ask for it as what it is, or choose another name");
}

} // namespace detail

// ---- making ------------------------------------------------------------------------------------

SKEIN_INLINE counted_ptr<detail::actor_queue> runtime::declare_actor(detail::call_base& call,
                                                                     const actor_options& how,
                                                                     bool& exists) {
    auto terms = detail::terms_of(how);
    call.target = new_actor_id();
    set_demand(call, how);
    auto& actors = state_->actors;
    if (state_->upstream == nullptr) {
        actor_id known;
        if (terms && !terms->name.empty()) {
            if (auto why = take_name(call.target, *terms, *call.fn->actor, known)) {
                refuse(call, std::move(*why));
                return {};
            }
        }
        exists = static_cast<bool>(known);
        if (exists) return queue_for(known);
        auto& entry = actors.entries[call.target];
        entry.type = call.fn->actor;
        if (terms) {
            entry.plan = std::make_unique<detail::actor_plan>();
            entry.plan->terms = *terms;
        }
        keep_demand(call);
    }
    auto queue = queue_for(call.target);
    queue->max_pending = terms ? terms->max_pending : 0;
    queue->is_detached = how.detached;
    if (state_->upstream != nullptr) actors.borrowed.hold(call.target); // by its driver's count
    if (terms) {
        queue->name = terms->name;
        call.extra().terms = std::move(terms);
        call.retries_left = 1; // says that they are there
    }
    return queue;
}

/// Driver: a name is taken, or `known` has it already.
SKEIN_INLINE std::optional<error> runtime::take_name(actor_id id, const detail::actor_terms& terms,
                                                     const std::type_info& type, actor_id& known) {
    auto& actors = state_->actors;
    const auto [at, is_new] = actors.names.try_emplace(terms.name, id);
    if (is_new) return std::nullopt;
    const auto& entry = actors.entries.at(at->second);
    if (!terms.get_if_exists)
        return error(errc::already_exists,
                     fmt::format("there is an actor named \"{}\" already, a {}", terms.name,
                                 readable_name(entry.type->name())))
            .with_hint("get_actor gives it; .get_if_exists = true makes it only if it is missing");
    if (*entry.type != type) return detail::wrong_type(terms.name, entry.type->name(), type.name());
    known = at->second;
    return std::nullopt;
}

/// Driver: a worker makes an actor. False: it has its answer already.
SKEIN_INLINE bool runtime::admit_actor(peer& from, const net::frame_view& f,
                                       const function_record& fn, const detail::call_head& head,
                                       wire::reader& in) {
    auto& actors = state_->actors;
    const auto number = head.target.value();
    if (number.incarnation != from.incarnation || actors.find(head.target) != nullptr)
        throw error(errc::malformed,
                    fmt::format("{} makes an actor under a number that is not its own", from.who));
    detail::actor_terms terms;
    const bool has_terms = head.retries != 0;
    if (has_terms && (!terms.decode(in) || terms.has_snapshot))
        throw error(errc::malformed,
                    fmt::format("options of an actor that cannot be read from {}", from.who));
    if (!terms.name.empty()) {
        actor_id known;
        if (auto why = take_name(head.target, terms, *fn.actor, known)) {
            reply_failure(from, slot_id(f.id), {std::move(*why), nullptr});
            return false;
        }
        if (known) {
            reply_handle(from, slot_id(f.id), known);
            return false;
        }
    }
    auto& entry = actors.entries[head.target];
    entry.type = fn.actor;
    actors.held.add(from.number, head.target);
    if (has_terms) {
        entry.plan = std::make_unique<detail::actor_plan>();
        entry.plan->terms = std::move(terms);
    }
    return true;
}

/// Driver: an actor was made, or its constructor threw; then its call fails next and tells who
/// waits.
SKEIN_INLINE void runtime::settle_create(peer& from, const detail::call_base& call,
                                         std::uint16_t outcome) {
    auto* const entry = state_->actors.find(call.target);
    if (outcome != detail::reply_failed && entry != nullptr) {
        entry->where = &from;
        actor_is_placed(call.target);
        return;
    }
    actor_left(from);
    if (outcome != detail::reply_failed) send_actor(from, detail::message_drop, call.target);
}

/// Driver: the calls that have waited for it go out.
SKEIN_INLINE void runtime::actor_is_placed(actor_id id) {
    auto* const entry = state_->actors.find(id);
    entry->making = {};
    if (const auto found = state_->actor_queues.find(id); found != state_->actor_queues.end()) {
        const counted_ptr<detail::actor_queue> queue(found->second);
        queue->on = entry->where;
        queue->moving = false;
        drain(*queue);
    }
    send_waiting(id);
    for (const auto asker : std::exchange(entry->askers, {})) tell_where(asker, id, entry->where);
    give_late_holds_back(id);
    let_go(id);
    followers::actor_is_placed(*this, id);
}

SKEIN_INLINE void runtime::send_waiting(actor_id id) {
    auto* entry = state_->actors.find(id);
    if (entry == nullptr) return;
    for (auto& call : std::exchange(entry->waiting, {})) {
        if (call->is_done()) continue;
        call->state = detail::phase::queued;
        place(std::move(call)); // it may have ended meanwhile
    }
}

/// Driver: a constructor has failed, or was never called.
SKEIN_INLINE void runtime::create_failed(actor_id id, const failure& why) {
    if (state_->upstream != nullptr) return;
    auto* const entry = state_->actors.find(id);
    if (entry == nullptr || entry->where != nullptr) return;
    entry->making = {}; // it ends by itself
    const auto again = entry->plan ? entry->plan->made_again : 0;
    std::string text = fmt::format("{} could not be made{}: {}", actor_title(id),
                                   again > 0 ? " again" : "", why.what.text());
    if (again > 0)
        text += fmt::format("; it was made again {}, this time included", detail::times(again));
    const failure told{error(why.what.code(), std::move(text)), why.from};
    end_actor(id, 0, &told);
}

// ---- names -------------------------------------------------------------------------------------

SKEIN_INLINE error runtime::no_such_actor(std::string_view name) const {
    return error(errc::not_found, fmt::format("there is no actor named \"{}\"; {}", name,
                                              known_names(state_->actors.names, "none has a name")))
        .with_hint("an actor has its name from .with({.name = ...}) until it ends");
}

SKEIN_INLINE counted_ptr<detail::actor_queue> runtime::find_actor(
    const counted_ptr<detail::call_base>& call, std::string_view name, const std::type_info& type) {
    call->extra().name = fmt::format("get_actor(\"{}\")", name);
    auto& actors = state_->actors;
    if (state_->space_server_end) {
        refuse(*call, is_closing(call->name()));
        return {};
    }
    if (state_->upstream == nullptr) {
        const auto found = actors.names.find(name);
        if (found == actors.names.end()) {
            refuse(*call, no_such_actor(name));
            return {};
        }
        const auto& is = *actors.entries.at(found->second).type;
        if (is == type) return queue_for(found->second);
        refuse(*call, detail::wrong_type(name, is.name(), type.name()));
        return {};
    }
    const auto question = [&](wire::writer& to) {
        wire::encode(to, std::string(type.name()));
        wire::encode(to, std::string(name));
    };
    ask_driver(call, call->name(), detail::message_find, question);
    return {};
}

/// Worker: its driver's answer settles the call.
SKEIN_INLINE void runtime::ask_driver(const counted_ptr<detail::call_base>& call, std::string name,
                                      std::uint16_t kind, detail::encoder body) {
    call->extra().name = std::move(name);
    if (!prepare(*call)) return;
    auto& up = *state_->upstream;
    call->slot = take_slot(call);
    call->on = &up;
    call->state = detail::phase::queued;
    if (!up.wire->is_open()) return; // until the link is settled
    wire::writer written;
    body(written);
    up.wire->send(kind, 0, call->slot.value(), written.bytes(), {});
    call->state = detail::phase::sent;
}

/// Driver: a worker asks for an actor.
SKEIN_INLINE void runtime::on_find(peer& from, const net::frame_view& f) {
    wire::reader in(f.body);
    std::string type, name;
    wire::detail::read(in, type);
    wire::detail::read(in, name);
    if (!in.finish())
        throw error(errc::malformed,
                    fmt::format("a question that cannot be read from {}", from.who));
    const auto& actors = state_->actors;
    const auto found = actors.names.find(name);
    if (found == actors.names.end())
        return reply_failure(from, slot_id(f.id), {no_such_actor(name), nullptr});
    const char* const is = actors.entries.at(found->second).type->name();
    if (type != is)
        return reply_failure(from, slot_id(f.id),
                             {detail::wrong_type(name, is, type.c_str()), nullptr});
    reply_handle(from, slot_id(f.id), found->second);
}

// ---- frames ------------------------------------------------------------------------------------

/// A worker speaks for actors that it runs, and gives back what it holds; who has an actor's number
/// may hold it and call it. What it says of one that has ended has crossed the news of that.
SKEIN_INLINE void runtime::on_actor_frame(peer& from, const net::frame_view& f) {
    const bool is_kill = f.kind == detail::message_kill;
    if (state_->upstream != nullptr) {
        if (is_kill) return state_->executor.kill(detail::actor_of(f.body, from.who));
        throw error(errc::malformed,
                    fmt::format("frame of unknown kind {} from {}", f.kind, from.who));
    }
    switch (f.kind) {
    case detail::message_snapshot: return on_snapshot(from, f);
    case detail::message_release: return on_release(from, f.body);
    case detail::message_find: return on_find(from, f);
    default: break;
    }
    const auto id = detail::actor_of(f.body, from.who);
    auto* const entry = state_->actors.find(id);
    if (entry == nullptr) return;
    if (is_kill) return kill_actor(id);
    if (f.kind == detail::message_hold) return state_->actors.held.add(from.number, id);
    if (entry->where != &from)
        throw error(errc::malformed,
                    fmt::format("{} ends actor {}, which is not there", from.who, id));
    const auto why = detail::ended(actor_title(id), "has left");
    end_actor(id, 0, &why);
}

SKEIN_INLINE void runtime::on_snapshot(peer& from, const net::frame_view& f) {
    wire::reader in(f.body);
    actor_id id;
    if (!detail::get_actor_id(in, id))
        throw error(errc::malformed,
                    fmt::format("a snapshot that cannot be read from {}", from.who));
    auto* const entry = state_->actors.find(id);
    if (entry == nullptr) return;
    if (entry->where != &from || !entry->lasts())
        throw error(errc::malformed,
                    fmt::format("{} saves actor {}, which {}", from.who, id,
                                entry->where == &from ? "is not made again" : "is not there"));
    entry->plan->snapshot = to_buffer(in.rest());
}

} // namespace skein::rt
