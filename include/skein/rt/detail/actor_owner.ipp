// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of rt/detail/actor_owner.hpp.

#include <skein/core/config.hpp>
#include <skein/core/known_names.hpp>
#include <skein/core/task_context.hpp>
#include <skein/core/type_name.hpp>
#include <skein/net/frame.hpp>
#include <skein/rt/detail/call_rarities.hpp>
#include <skein/rt/detail/message.hpp>
#include <skein/rt/detail/peer.hpp>
#include <skein/wire/decode.hpp>
#include <skein/wire/encode.hpp>

#include <algorithm>
#include <iterator>
#include <utility>

#include <fmt/format.h>

namespace skein::rt::detail {

SKEIN_INLINE std::string times(std::int64_t n) {
    return n == 1 ? std::string("once") : fmt::format("{} times", n);
}

SKEIN_INLINE failure ended(std::string_view title, std::string_view how) {
    return {error(errc::not_found, fmt::format("{} {}", title, how)), nullptr};
}

SKEIN_INLINE error wrong_type(std::string_view name, const char* is, const char* wanted) {
    return error(errc::mismatch, fmt::format("actor \"{}\" is a {}, not a {}", name,
                                             readable_name(is), readable_name(wanted)))
        .with_hint("ask for it as what it is, or choose another name");
}

SKEIN_INLINE void send_actor(peer& to, std::uint16_t kind, actor_id id) {
    if (!to.wire->is_open()) return;
    wire::writer body;
    put_actor(body, id);
    to.wire->send(kind, 0, 0, body.bytes(), {});
}

/// Empty: the worker does not say where it is.
[[nodiscard]] inline std::string node_label(const worker_room& worker) {
    for (const auto& l : worker.labels)
        if (l.starts_with("node=")) return l;
    return {};
}

SKEIN_INLINE const actor_entry* actor_owner::find(actor_id id) const {
    const auto at = entries_.find(id);
    return at != entries_.end() ? &at->second : nullptr;
}

template <class Holds>
std::vector<actor_id> actor_owner::ids_of(Holds holds) const {
    std::vector<actor_id> out;
    for (const auto& [id, entry] : entries_)
        if (holds(entry)) out.push_back(id);
    std::sort(out.begin(), out.end());
    return out;
}

// ---- making ------------------------------------------------------------------------------------

SKEIN_INLINE result<actor_id> actor_owner::declare(actor_id id, const actor_terms* terms,
                                                   const std::type_info& type) {
    if (terms != nullptr && !terms->name.empty()) {
        const auto [at, is_new] = names_.try_emplace(terms->name, id);
        const auto& is = is_new ? type : *entries_.at(at->second).type;
        if (!is_new && !terms->get_if_exists)
            return error(errc::already_exists,
                         fmt::format("there is an actor named \"{}\" already, a {}", terms->name,
                                     readable_name(is.name())))
                .with_hint("get_actor gives it; .get_if_exists = true makes it only if it is "
                           "missing");
        if (is != type) return wrong_type(terms->name, is.name(), type.name());
        if (!is_new) return at->second;
    }
    auto& entry = entries_[id];
    entry.type = &type;
    if (terms != nullptr) {
        entry.plan = std::make_unique<actor_plan>();
        entry.plan->terms = *terms;
    }
    return id;
}

SKEIN_INLINE bool actor_owner::admit(peer& from, slot_id slot, const function_record& fn,
                                     const call_head& head, wire::reader& in) {
    const auto number = head.target.value();
    if (number.incarnation != from.incarnation || find(head.target) != nullptr)
        throw malformed(
            fmt::format("{} makes an actor under a number that is not its own", from.who));
    actor_terms terms;
    const bool has_terms = head.retries != 0;
    if (has_terms && (!terms.decode(in) || terms.has_snapshot))
        throw malformed(fmt::format("options of an actor that cannot be read from {}", from.who));
    const auto made = declare(head.target, has_terms ? &terms : nullptr, *fn.actor);
    if (!made) {
        replies_.reply_failure(from, slot, {made.error(), nullptr});
        return false;
    }
    if (*made != head.target) {
        reply_handle(from, slot, *made);
        return false;
    }
    held_.add(from.number, head.target);
    return true;
}

SKEIN_INLINE void actor_owner::keep_demand(const call_base& call) {
    auto* const entry = entry_of(call.target);
    if (entry == nullptr) return;
    if (entry->plan) {
        entry->plan->demand = call.demand;
        if (call.rare) entry->plan->beside = call.rare->beside;
    }
    entry->group = groups_.of(call.demand);
}

SKEIN_INLINE void actor_owner::remember_plan(const call_base& call) {
    auto* const entry = entry_of(call.target);
    if (entry == nullptr || !entry->lasts() || entry->plan->fn != nullptr) return;
    wire::reader in(call.body);
    call_head head;
    actor_terms terms;
    if (!head.decode(in, 0, {}) || !terms.decode(in)) return; // it was written or read here
    entry->plan->fn = call.fn;
    entry->plan->arguments = to_buffer(in.rest());
}

SKEIN_INLINE void actor_owner::settle(peer& from, const call_base& call, bool failed) {
    auto* const entry = entry_of(call.target);
    if (!failed && entry != nullptr) {
        entry->where = &from;
        return is_placed(call.target);
    }
    has_left(from); // if it has failed, its call fails next, and tells who waits
    if (!failed) send_actor(from, message_drop, call.target);
}

/// Its worker, if that was for it alone, ends, too.
SKEIN_INLINE void actor_owner::has_left(peer& at) {
    if (!dispatch_.end_actor(at.room)) return;
    at.ended.set();
    dispatch_.tell_demand(at.room.demand);
}

/// What has waited for it goes.
SKEIN_INLINE void actor_owner::is_placed(actor_id id) {
    auto* entry = entry_of(id);
    entry->making = {};
    above_.handles_follow(id, entry->where);
    if (entry = entry_of(id); entry != nullptr) {
        for (auto& call : std::exchange(entry->waiting, {})) {
            if (call->is_done()) continue;
            call->state = phase::queued;
            above_.place(std::move(call)); // it may have ended meanwhile
        }
    }
    if (entry = entry_of(id); entry != nullptr)
        for (const auto asker : std::exchange(entry->askers, {}))
            above_.tell_where(asker, id, entry->where, {});
    give_late_holds_back(id);
    let_go(id);
    release_followers(id);
}

SKEIN_INLINE void actor_owner::create_failed(actor_id id, const failure& why) {
    auto* const entry = entry_of(id);
    if (entry == nullptr || entry->where != nullptr) return;
    entry->making = {}; // it ends by itself
    const auto again = entry->plan ? entry->plan->made_again : 0;
    std::string text = fmt::format("{} could not be made{}: {}", above_.title_of(id),
                                   again > 0 ? " again" : "", why.what.text());
    if (again > 0) text += fmt::format("; it was made again {}, this time included", times(again));
    const failure told{error(why.what.code(), std::move(text)), why.from};
    end(id, 0, &told);
}

// ---- names -------------------------------------------------------------------------------------

SKEIN_INLINE result<actor_id> actor_owner::named(std::string_view name) const {
    if (const auto found = names_.find(name); found != names_.end()) return found->second;
    return error(errc::not_found, fmt::format("there is no actor named \"{}\"; {}", name,
                                              known_names(names_, "none has a name")))
        .with_hint("an actor has its name from .with({.name = ...}) until it ends");
}

/// A worker asks for an actor.
SKEIN_INLINE void actor_owner::on_find(peer& from, slot_id slot, byte_span body) {
    wire::reader in(body);
    std::string type, name;
    wire::detail::read(in, type);
    wire::detail::read(in, name);
    if (!in.finish())
        throw malformed(fmt::format("a question that cannot be read from {}", from.who));
    const auto found = named(name);
    if (!found) return replies_.reply_failure(from, slot, {found.error(), nullptr});
    const char* const is = entries_.at(*found).type->name();
    if (type != is)
        return replies_.reply_failure(from, slot, {wrong_type(name, is, type.c_str()), nullptr});
    reply_handle(from, slot, *found);
}

// ---- who holds them ----------------------------------------------------------------------------

/// A worker gets a handle, and holds it from now on.
SKEIN_INLINE void actor_owner::reply_handle(peer& to, slot_id slot, actor_id id) {
    const auto& entry = entries_.at(id);
    held_.add(to.number, id);
    std::uint32_t said = entry.plan ? std::min(entry.plan->terms.max_pending, most_pending) : 0;
    if (entry.is_detached()) said |= detached_handle;
    replies_.reply(to, slot, [&](wire::writer& w) {
        put_actor(w, id);
        w.fixed(said);
    });
}

SKEIN_INLINE void actor_owner::let_go(actor_id id) {
    const auto* const entry = find(id);
    if (entry == nullptr || above_.has_handles(id) || held_.is_held(id) ||
        !entry->waiting.empty() || entry->is_detached())
        return;
    end(id, message_drop, nullptr);
}

/// It is there again, or not to be expected any more: what others hold of what it had, ends.
SKEIN_INLINE void actor_owner::give_late_holds_back(actor_id settled) {
    for (const auto lost : late_.settle(settled)) {
        for (const auto id : held_.lose(lost)) let_go(id);
        groups_.table().lose_lent(lost);
    }
}

// ---- calls -------------------------------------------------------------------------------------

SKEIN_INLINE void actor_owner::wait_first(actor_id id, calls again) {
    if (auto* const entry = entry_of(id)) {
        entry->waiting.insert(entry->waiting.begin(), again.begin(), again.end());
        return;
    }
    for (auto& call : again) above_.place(std::move(call));
}

/// title: of the actor where it is to run
SKEIN_INLINE error cannot_follow(const call_base& call, const std::string& title,
                                 const error& why) {
    error said(why.code(), fmt::format("{} {}: it is to run where {} is: {}", call.name(),
                                       call.progress(), title, why.text()));
    if (!why.hint().empty()) said.with_hint(why.hint());
    return said;
}

SKEIN_INLINE bool actor_owner::may_go(const counted_ptr<call_base>& call) {
    if (!call->rare || !call->rare->beside) return true;
    const auto id = call->rare->beside;
    auto* const entry = entry_of(id);
    if (entry == nullptr) {
        const auto told = above_.why_lost(id);
        const auto why = told
                             ? *told
                             : error(errc::not_found, above_.title_of(id) + " is not known here")
                                   .with_hint("it has ended, or it lives in a namespace or program "
                                              "other than that of the call");
        call->fail({cannot_follow(*call, above_.title_of(id), why), nullptr});
        return false;
    }
    if (entry->where == nullptr || entry->where->room.labels_follow) {
        entry->add_beside(call);
        if (call->kind == call_kind::create)
            if (auto* const own = entry_of(call->target)) own->making = call;
        return false;
    }
    auto& demands = dispatch_.demands();
    const auto number = demands.number_on(call->demand, node_label(entry->where->room));
    if (!number) {
        call->fail({cannot_follow(*call, above_.title_of(id), number.error()), nullptr});
        return false;
    }
    entry->is_followed = true;
    call->demand = *number;
    if (call->kind == call_kind::task) call->cpus = demands.at(*number).cpus;
    return true;
}

SKEIN_INLINE void actor_owner::line_up(counted_ptr<call_base> call) {
    if (call->kind == call_kind::create && call->demand)
        if (auto* const entry = entry_of(call->target)) entry->making = call;
    dispatch_.line_up(std::move(call));
}

SKEIN_INLINE void actor_owner::release_followers(actor_id id) {
    auto* const entry = entry_of(id);
    if (entry == nullptr) return;
    for (auto& call : std::exchange(entry->beside, {}))
        if (!call->is_done()) above_.place(std::move(call));
}

/// Takes those that are to run where this actor is out of their lines.
SKEIN_INLINE void actor_owner::take_followers(actor_id id, calls& into) {
    dispatch_.lines().take_if(
        [&](const counted_ptr<call_base>& call) {
            return !call->is_done() && call->rare && call->rare->beside == id;
        },
        into);
}

SKEIN_INLINE void actor_owner::take_followers(calls& into) {
    for (auto& [id, entry] : entries_)
        for (auto& call : std::exchange(entry.beside, {})) into.push_back(std::move(call));
}

SKEIN_INLINE void actor_owner::labels_known(const peer& at) {
    for (const auto id : ids_of([&](const actor_entry& one) { return one.where == &at; }))
        release_followers(id);
}

// ---- ends --------------------------------------------------------------------------------------

SKEIN_INLINE void actor_owner::kill(actor_id id) {
    const auto why = ended(above_.title_of(id), "was killed");
    end(id, message_kill, &why);
}

SKEIN_INLINE void actor_owner::end(actor_id id, std::uint16_t tell, const failure* why) {
    auto node = entries_.extract(id);
    if (node.empty()) return;
    held_.forget(id);
    auto entry = std::move(node.mapped());
    if (entry.plan && !entry.plan->terms.name.empty()) names_.erase(entry.plan->terms.name);
    const auto told = why != nullptr ? *why : ended(above_.title_of(id), "is gone");
    const auto queue = above_.handles_lose(id, told);
    if (entry.where != nullptr) {
        if (tell != 0) send_actor(*entry.where, tell, id);
        has_left(*entry.where);
    }
    calls waiting(entry.waiting.begin(), entry.waiting.end());
    if (tell == message_kill) above_.take_back_calls(id, waiting);
    for (const auto& call : waiting)
        if (!call->is_done())
            call->fail({error(told.what.code(), call->name() + " did not run: " + told.what.text()),
                        nullptr});
    if (queue) above_.fail_queue(*queue);
    if (entry.is_followed) take_followers(id, entry.beside);
    for (const auto& call : entry.beside)
        if (!call->is_done())
            call->fail({cannot_follow(*call, above_.title_of(id), told.what), nullptr});
    if (!entry.beside.empty()) above_.pump();
    for (const auto asker : entry.askers) above_.tell_where(asker, id, nullptr, told.what.text());
    give_late_holds_back(id);
    const auto& making = entry.making; // it may wait for long for what nobody wants any more
    if (making && !making->is_done() && making->state == phase::queued && making->on == nullptr) {
        making->fail({error(errc::cancelled, making->name() + " did not run: " + told.what.text()),
                      nullptr});
        above_.pump();
    }
}

SKEIN_INLINE void actor_owner::end_group(const group_state& group) {
    for (const auto id :
         ids_of([&](const actor_entry& one) { return one.group.get() == &group; })) {
        const failure told{
            error(group.why->code(),
                  fmt::format("{} has ended: {}", above_.title_of(id), group.why->text())),
            nullptr};
        end(id, message_kill, &told);
    }
}

// ---- a worker is lost --------------------------------------------------------------------------

SKEIN_INLINE lost_actors actor_owner::lose(peer& worker) {
    lost_actors lost;
    for (const auto id : ids_of([&](const actor_entry& one) { return one.where == &worker; })) {
        auto& entry = entries_.at(id);
        const bool wanted = !closing_ && entry.lasts() &&
                            (above_.has_handles(id) || held_.is_held_besides(worker.number, id) ||
                             entry.is_detached());
        if (wanted && entry.plan->may_restart()) {
            entry.where = nullptr;
            if (std::exchange(entry.is_followed, false)) take_followers(id, entry.beside);
            ++entry.plan->made_again;
            lost.moving.push_back(id);
            above_.handles_follow(id, nullptr);
            continue;
        }
        if (wanted)
            lost.notes[id] = fmt::format("; {} was made again {}, as .restarts allows",
                                         above_.title_of(id), times(entry.plan->made_again));
        if (entry.plan) names_.erase(entry.plan->terms.name);
        std::move(entry.beside.begin(), entry.beside.end(), std::back_inserter(lost.stranded));
        if (entry.is_followed) take_followers(id, lost.stranded);
        entries_.erase(id);
        held_.forget(id);
    }
    if (lost.moving.empty())
        lost.orphaned = held_.lose(worker.number);
    else
        late_.await(worker.number, lost.moving);
    return lost;
}

SKEIN_INLINE bool actor_owner::moves(call_base& call, bool sent) {
    auto* const entry = entry_of(call.target);
    if (closing_ || entry == nullptr || !entry->lasts() || entry->where != nullptr) return false;
    auto& plan = *entry->plan;
    if (sent && call.kind == call_kind::create) {
        if (!plan.may_restart()) return false;
        ++plan.made_again;
    } else if (sent) {
        if (call.lost_attempts >= plan.terms.call_retries) return false;
        ++call.lost_attempts;
    }
    return true;
}

SKEIN_INLINE void actor_owner::make_again(actor_id id) {
    const auto* const entry = find(id);
    if (entry == nullptr || entry->where != nullptr) return;
    const task_context::use none(nullptr); // it belongs to no call
    auto call = above_.new_constructor(id, *entry->plan);
    if (call && may_go(call)) line_up(std::move(call));
}

// ---- frames ------------------------------------------------------------------------------------

/// A worker speaks for actors that it runs, and gives back what it holds; who has an actor's number
/// may hold it and call it. What it says of one that has ended has crossed the news of that.
SKEIN_INLINE void actor_owner::on_frame(peer& from, const net::frame_view& f) {
    switch (f.kind) {
    case message_snapshot: return on_snapshot(from, f.body);
    case message_release: return on_release(from, f.body);
    case message_find: return on_find(from, slot_id(f.id), f.body);
    default: break;
    }
    const auto id = actor_of(f.body, from.who);
    const auto* const entry = find(id);
    if (entry == nullptr) return;
    if (f.kind == message_kill) return kill(id);
    if (f.kind == message_hold) return held_.add(from.number, id);
    if (entry->where != &from)
        throw malformed(fmt::format("{} ends actor {}, which is not there", from.who, id));
    const auto why = ended(above_.title_of(id), "has left");
    end(id, 0, &why);
}

SKEIN_INLINE void actor_owner::on_snapshot(const peer& from, byte_span body) {
    wire::reader in(body);
    actor_id id;
    if (!get_actor_id(in, id))
        throw malformed(fmt::format("a snapshot that cannot be read from {}", from.who));
    auto* const entry = entry_of(id);
    if (entry == nullptr) return;
    if (entry->where != &from || !entry->lasts())
        throw malformed(fmt::format("{} saves actor {}, which {}", from.who, id,
                                    entry->where == &from ? "is not made again" : "is not there"));
    entry->plan->snapshot = to_buffer(in.rest());
}

SKEIN_INLINE void actor_owner::on_release(const peer& from, byte_span body) {
    wire::reader in(body);
    actor_id id;
    std::uint32_t count = 0;
    if (!get_actor_id(in, id) || !in.fixed(count) || !in.finish())
        throw malformed(fmt::format("a release that cannot be read from {}", from.who));
    if (find(id) == nullptr) return;
    if (!held_.give_back(from.number, id, count))
        throw malformed(
            fmt::format("{} gives handles to actor {} back that it has not", from.who, id));
    let_go(id);
}

} // namespace skein::rt::detail
