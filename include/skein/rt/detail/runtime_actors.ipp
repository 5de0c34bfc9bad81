// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of rt/runtime.hpp: how actors begin and end. Their names, who holds handles to them, and the
// frames about them. What follows the loss of a worker is in runtime_restarts.ipp.
//
// An actor ends when nobody holds a handle to it. The driver counts for each link how often it was told, or has told,
// that there are handles; a worker says `release` with the same count when its last one is gone. So a handle that is
// on its way to a worker is never lost to a release that crosses it.

#include <skein/core/check.hpp>
#include <skein/core/log.hpp>
#include <skein/core/type_name.hpp>
#include <skein/rt/detail/runtime_books.hpp>
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
    terms->name = std::string(how.name);
    terms->get_if_exists = how.get_if_exists;
    return terms;
}

SKEIN_INLINE error wrong_type(std::string_view name, const char* is, const char* wanted) {
    return error(errc::mismatch, fmt::format("actor \"{}\" is a {}, not a {}", name,
                                             readable_name(is), readable_name(wanted)))
        .with_hint("ask for it as what it is, or choose another name");
}

SKEIN_INLINE failure ended(actor_id id, std::string_view how) {
    return {error(errc::not_found, fmt::format("actor {} {}", id, how)), nullptr};
}

} // namespace detail

// ---- making ------------------------------------------------------------------------------------

SKEIN_INLINE counted_ptr<detail::actor_state> runtime::declare_actor(detail::call_base& call,
                                                                     const actor_options& how,
                                                                     bool& exists) {
    auto terms = detail::terms_of(how);
    call.target = new_actor_id();
    auto& actors = books_->actors;
    if (books_->upstream == nullptr) {
        actor_id known;
        if (terms && !terms->name.empty()) {
            if (auto why = take_name(call.target, *terms, *call.fn->actor, known)) {
                refuse(call, std::move(*why));
                return {};
            }
        }
        exists = static_cast<bool>(known);
        if (exists) return actor_lane(known);
        auto& entry = actors.entries[call.target];
        entry.type = call.fn->actor;
        if (terms) {
            entry.plan = std::make_unique<detail::actor_plan>();
            entry.plan->terms = *terms;
        }
    }
    auto lane = actor_lane(call.target);
    lane->max_pending = terms ? terms->max_pending : 0;
    if (books_->upstream != nullptr) lane->holds = 1; // the driver counts who makes an actor
    if (terms) {
        call.extra().terms = std::move(terms);
        call.retries_left = 1; // says that they are there
    }
    return lane;
}

/// Driver: a name is taken, or `known` has it already.
SKEIN_INLINE std::optional<error> runtime::take_name(actor_id id, const detail::actor_terms& terms,
                                                     const std::type_info& type, actor_id& known) {
    auto& actors = books_->actors;
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
    auto& actors = books_->actors;
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
    entry.add_hold(from.number);
    if (has_terms) {
        entry.plan = std::make_unique<detail::actor_plan>();
        entry.plan->terms = std::move(terms);
    }
    return true;
}

/// Driver: an actor was made, or its constructor threw; then its call fails next and tells who waits.
SKEIN_INLINE void runtime::settle_create(peer& from, const detail::call_base& call,
                                         std::uint16_t outcome) {
    auto* const entry = books_->actors.find(call.target);
    if (outcome != detail::reply_failed && entry != nullptr) {
        entry->where = &from;
        actor_is_placed(call.target);
        return;
    }
    --from.actors;
    if (outcome != detail::reply_failed) send_actor(from, detail::message_drop, call.target);
}

/// Driver: the calls that have waited for it go out.
SKEIN_INLINE void runtime::actor_is_placed(actor_id id) {
    auto* const entry = books_->actors.find(id);
    if (const auto found = books_->lanes.find(id); found != books_->lanes.end()) {
        const counted_ptr<detail::actor_state> lane(found->second);
        lane->on = entry->where;
        lane->moving = false;
        drain(*lane);
    }
    send_waiting(id);
    give_late_holds_back(id);
    let_go(id);
}

SKEIN_INLINE void runtime::send_waiting(actor_id id) {
    auto* entry = books_->actors.find(id);
    if (entry == nullptr) return;
    for (auto& call : std::exchange(entry->waiting, {})) {
        if (call->is_done()) continue;
        call->state = detail::phase::queued;
        place(std::move(call)); // it may have ended meanwhile
    }
}

/// Driver: a constructor has failed, or was never called.
SKEIN_INLINE void runtime::create_failed(actor_id id, const failure& why) {
    if (books_->upstream != nullptr) return;
    const auto* const entry = books_->actors.find(id);
    if (entry == nullptr || entry->where != nullptr) return;
    const auto again = entry->plan ? entry->plan->made_again : 0;
    std::string text = fmt::format("actor {} could not be made{}: {}", id,
                                   again > 0 ? " again" : "", why.what.text());
    if (again > 0) text += fmt::format("; it was made again {} times, this one included", again);
    const failure told{error(why.what.code(), std::move(text)), why.from};
    end_actor(id, 0, &told);
}

// ---- handles -----------------------------------------------------------------------------------

SKEIN_INLINE void runtime::drop_actor(detail::actor_state& lane) noexcept {
    books_->lanes.erase(lane.id);
    if (books_->upstream == nullptr) return let_go(lane.id);
    if (lane.holds == 0) {
        books_->actors.borrowed.erase(lane.id);
        return;
    }
    if (!books_->upstream->wire->is_open()) return;
    wire::writer body;
    detail::put_actor(body, lane.id);
    body.fixed(lane.holds);
    books_->upstream->wire->send(detail::message_release, 0, 0, body.bytes(), {});
}

SKEIN_INLINE counted_ptr<detail::actor_state> runtime::borrow_actor(actor_id id,
                                                                    std::uint32_t max_pending) {
    const bool is_new = !books_->lanes.contains(id);
    auto lane = actor_lane(id);
    if (is_new) lane->max_pending = max_pending;
    if (is_new && books_->upstream != nullptr) books_->actors.borrowed.insert(id);
    return lane;
}

SKEIN_INLINE counted_ptr<detail::actor_state> runtime::hold_actor(actor_id id,
                                                                  std::uint32_t max_pending) {
    auto lane = borrow_actor(id, max_pending);
    if (books_->upstream == nullptr) return lane;
    ++lane->holds;
    books_->actors.borrowed.erase(id);
    return lane;
}

SKEIN_INLINE bool runtime::has_borrowed() const noexcept {
    return !books_->actors.borrowed.empty();
}

SKEIN_INLINE void runtime::lend_actor(actor_id id) {
    auto& lent = books_->actors.lent;
    if (std::find(lent.begin(), lent.end(), id) == lent.end()) lent.push_back(id);
}

/// Worker: a call is answered, and there are handles that came as arguments.
SKEIN_INLINE void runtime::tell_holds(peer& to) {
    auto& borrowed = books_->actors.borrowed;
    std::vector<actor_id> all(borrowed.begin(), borrowed.end());
    borrowed.clear();
    std::sort(all.begin(), all.end());
    for (const auto id : all) {
        books_->lanes.at(id)->holds = 1;
        send_actor(to, detail::message_hold, id);
    }
}

SKEIN_INLINE void runtime::send_actor(peer& to, std::uint16_t kind, actor_id id) {
    if (!to.wire->is_open()) return;
    wire::writer body;
    detail::put_actor(body, id);
    to.wire->send(kind, 0, 0, body.bytes(), {});
}

/// Driver: a worker gets a handle, and holds it from now on.
SKEIN_INLINE void runtime::reply_handle(peer& to, slot_id id, actor_id actor) {
    auto& entry = books_->actors.entries.at(actor);
    entry.add_hold(to.number);
    const auto max_pending = entry.plan ? entry.plan->terms.max_pending : 0;
    reply(to, id, [&](wire::writer& w) {
        detail::put_actor(w, actor);
        w.fixed(max_pending);
    });
}

/// The value of a call has handles in it: who gets it holds them before who gave it can let go.
SKEIN_INLINE void runtime::take_reply(peer& from, detail::call_base& call,
                                      const net::frame_view& f) {
    detail::lending_reply parts;
    if (!parts.decode(f.body))
        throw error(errc::malformed, fmt::format("a reply that cannot be read from {}", from.who));
    if (books_->upstream == nullptr && call.nested) {
        auto& passed = static_cast<detail::forwarded_call&>(call);
        passed.lends = true;
        if (passed.origin().up)
            for (const auto id : parts.actors)
                if (auto* const entry = books_->actors.find(id))
                    entry->add_hold(passed.origin().number);
        return call.finish_with_bytes(f.body);
    }
    std::vector<counted_ptr<detail::actor_state>> lanes;
    for (const auto id : parts.actors) lanes.push_back(hold_actor(id, 0));
    struct executing_guard {
        runtime* before = executing_;
        ~executing_guard() { executing_ = before; }
    } const guard;
    executing_ = this;
    call.finish_with_bytes(parts.value);
}

SKEIN_INLINE bool runtime::is_held(actor_id id, const detail::actor_entry& entry) const {
    return books_->lanes.contains(id) || !entry.holders.empty() || !entry.waiting.empty();
}

/// Driver: a handle is gone; it may have been the last one.
SKEIN_INLINE void runtime::let_go(actor_id id) {
    const auto* const entry = books_->actors.find(id);
    if (entry != nullptr && !is_held(id, *entry)) end_actor(id, detail::message_drop, nullptr);
}

// ---- ends --------------------------------------------------------------------------------------

/// Driver: forgets an actor. tell: what its worker hears, 0: nothing. why: what calls that wait hear.
SKEIN_INLINE void runtime::end_actor(actor_id id, std::uint16_t tell, const failure* why) {
    auto& actors = books_->actors;
    auto node = actors.entries.extract(id);
    if (node.empty()) return;
    auto entry = std::move(node.mapped());
    if (entry.plan && !entry.plan->terms.name.empty()) actors.names.erase(entry.plan->terms.name);
    counted_ptr<detail::actor_state> lane;
    if (const auto found = books_->lanes.find(id); found != books_->lanes.end())
        lane = counted_ptr<detail::actor_state>(found->second);
    if (lane) {
        lane->on = nullptr;
        lane->moving = false;
        lane->lost = why != nullptr ? *why : detail::ended(id, "is gone");
    }
    if (entry.where != nullptr) {
        --entry.where->actors;
        if (tell != 0) send_actor(*entry.where, tell, id);
    }
    const auto& told = why != nullptr ? *why : detail::ended(id, "is gone");
    if (tell == detail::message_kill) // what its worker has not begun
        for (std::size_t i = 0; i < books_->slots.size(); ++i) {
            const auto call = books_->slots[i].call;
            if (call && call->target == id && call->kind == detail::call_kind::method &&
                !call->is_done() && take_back(*call))
                entry.waiting.push_back(call);
        }
    for (const auto& call : entry.waiting)
        if (!call->is_done())
            call->fail({error(told.what.code(), call->name() + " did not run: " + told.what.text()),
                        nullptr});
    if (lane) fail_lane(*lane);
    give_late_holds_back(id);
}

SKEIN_INLINE void runtime::kill_actor(actor_id id) {
    if (books_->upstream != nullptr) return send_actor(*books_->upstream, detail::message_kill, id);
    const auto why = detail::ended(id, "was killed");
    end_actor(id, detail::message_kill, &why);
}

/// Worker: nothing of it goes on; a plain call that runs ends as it would.
SKEIN_INLINE void runtime::on_kill(peer& from, actor_id id) {
    const auto found = books_->boxes.find(id);
    if (found == books_->boxes.end()) return;
    found->second->over = "was killed";
    books_->boxes.erase(found);
    for (auto& [slot, call] : from.running) {
        if (call.context->actor != id) continue;
        call.stop.request();
        call.context->cancel_children();
    }
}

SKEIN_INLINE void runtime::leave_actor() {
    const auto* const context = detail::call_context::current();
    const auto found = context != nullptr && context->is_call() && context->actor
                           ? books_->boxes.find(context->actor)
                           : books_->boxes.end();
    if (found == books_->boxes.end())
        throw error(errc::invalid_argument,
                    "leave_actor() is called by something that is no method of an actor")
            .with_hint("kill(handle) ends an actor from outside");
    if (!found->second->last) found->second->last = context->who.id;
}

SKEIN_INLINE void runtime::method_ended(peer& to, detail::actor_box& box, bool changes) {
    if (box.last && box.last == detail::call_context::current()->who.id && box.over == nullptr) {
        box.over = "has left";
        send_actor(to, detail::message_left, box.id);
        books_->boxes.erase(box.id);
        return;
    }
    if (!changes || box.save_every == 0 || box.over != nullptr ||
        ++box.not_saved < box.save_every || !to.wire->is_open())
        return;
    box.not_saved = 0;
    wire::writer state;
    box.save(state);
    wire::writer body;
    detail::put_actor(body, box.id);
    body.raw(state.bytes());
    net::frame f;
    f.kind = detail::message_snapshot;
    f.body = std::move(body).take();
    to.wire->send(std::move(f));
}

SKEIN_INLINE void runtime::method_failed(peer& to, detail::actor_box& box, bool changes) noexcept {
    try {
        method_ended(to, box, changes);
    } catch (...) {
        try {
            logging::warn("rt", fmt::format("the state of actor {} was not saved: {}", box.id,
                                            to_error(std::current_exception()).what()));
        } catch (...) { // no memory for a line
        }
    }
}

SKEIN_INLINE result<void> runtime::set_terms(detail::actor_box& box,
                                             const detail::actor_terms& terms, byte_span snapshot) {
    box.gate.limit = terms.max_concurrency;
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
        {error(errc::not_found, fmt::format("{} did not run: actor {} {}", fn.name, box.id,
                                            box.over != nullptr ? box.over : "is gone")),
         nullptr});
}

SKEIN_INLINE task<bool> runtime::take_turn(std::shared_ptr<peer> from, slot_id id,
                                           const function_record* fn,
                                           std::shared_ptr<detail::actor_box> box) {
    detail::start_gate::turn turn(box->gate, true);
    bool cancelled = false;
    try {
        co_await turn;
    } catch (const error&) {
        cancelled = true;
    }
    --box->not_started;
    if (!cancelled && box->over == nullptr) {
        if (const auto found = from->running.find(id); found != from->running.end()) {
            found->second.waits = false;
            books_->fresh.push_back(id);
            if (books_->fresh.size() == 1) books_->calls.spawn(tell_started(from));
        }
        co_return true;
    }
    if (!cancelled) const detail::start_gate::seat unused(&box->gate);
    if (box->over != nullptr)
        reply_over(*from, id, *fn, *box);
    else
        reply_failure(
            *from, id,
            {error(errc::cancelled, fn->name + " was cancelled; it did not run"), nullptr});
    co_return false;
}

// ---- names -------------------------------------------------------------------------------------

SKEIN_INLINE error runtime::no_such_actor(std::string_view name) const {
    constexpr std::size_t shown = 5;
    const auto& names = books_->actors.names;
    std::string list;
    std::size_t n = 0;
    for (const auto& [other, id] : names) {
        if (n++ == shown) break;
        list += fmt::format("{}\"{}\"", list.empty() ? "" : ", ", other);
    }
    if (names.size() > shown) list += fmt::format(" and {} more", names.size() - shown);
    return error(errc::not_found,
                 fmt::format("there is no actor named \"{}\"; {}{}", name,
                             names.empty() ? "none has a name" : "there are: ", list))
        .with_hint("an actor has its name from .with({.name = ...}) until it ends");
}

SKEIN_INLINE counted_ptr<detail::actor_state> runtime::find_actor(
    const counted_ptr<detail::call_base>& call, std::string_view name, const std::type_info& type) {
    call->extra().name = fmt::format("get_actor(\"{}\")", name);
    auto& actors = books_->actors;
    if (books_->upstream == nullptr) {
        const auto found = actors.names.find(name);
        if (found == actors.names.end()) {
            refuse(*call, no_such_actor(name));
            return {};
        }
        const auto& is = *actors.entries.at(found->second).type;
        if (is == type) return actor_lane(found->second);
        refuse(*call, detail::wrong_type(name, is.name(), type.name()));
        return {};
    }
    if (!prepare(*call)) return {};
    call->slot = take_slot(call);
    call->on = books_->upstream;
    call->state = detail::phase::queued;
    if (!books_->upstream->wire->is_open()) return {}; // until the link is settled
    wire::writer body;
    wire::encode(body, std::string(type.name()));
    wire::encode(body, std::string(name));
    books_->upstream->wire->send(detail::message_find, 0, call->slot.value(), body.bytes(), {});
    call->state = detail::phase::sent;
    return {};
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
    const auto& actors = books_->actors;
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

/// A worker speaks for actors that it runs, and gives back what it holds; who has an actor's number may hold it and
/// call it. What it says of one that has ended has crossed the news of that.
SKEIN_INLINE void runtime::on_actor_frame(peer& from, const net::frame_view& f) {
    const bool is_kill = f.kind == detail::message_kill;
    if (books_->upstream != nullptr) {
        if (is_kill) return on_kill(from, detail::actor_of(f.body, from.who));
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
    auto* const entry = books_->actors.find(id);
    if (entry == nullptr) return;
    if (is_kill) return kill_actor(id);
    if (f.kind == detail::message_hold) return entry->add_hold(from.number);
    if (entry->where != &from)
        throw error(errc::malformed,
                    fmt::format("{} ends actor {}, which is not there", from.who, id));
    const auto why = detail::ended(id, "has left");
    end_actor(id, 0, &why);
}

SKEIN_INLINE void runtime::on_release(peer& from, byte_span body) {
    wire::reader in(body);
    actor_id id;
    std::uint32_t times = 0;
    if (!detail::get_actor_id(in, id) || !in.fixed(times) || !in.finish())
        throw error(errc::malformed,
                    fmt::format("a release that cannot be read from {}", from.who));
    auto* const entry = books_->actors.find(id);
    if (entry == nullptr) return;
    if (!entry->remove_holds(from.number, times))
        throw error(errc::malformed,
                    fmt::format("{} gives handles to actor {} back that it has not", from.who, id));
    let_go(id);
}

SKEIN_INLINE void runtime::on_snapshot(peer& from, const net::frame_view& f) {
    wire::reader in(f.body);
    actor_id id;
    if (!detail::get_actor_id(in, id))
        throw error(errc::malformed,
                    fmt::format("a snapshot that cannot be read from {}", from.who));
    auto* const entry = books_->actors.find(id);
    if (entry == nullptr) return;
    if (entry->where != &from || !entry->lasts())
        throw error(errc::malformed,
                    fmt::format("{} saves actor {}, which {}", from.who, id,
                                entry->where == &from ? "is not made again" : "is not there"));
    entry->plan->snapshot = to_buffer(in.rest());
}

} // namespace skein::rt
