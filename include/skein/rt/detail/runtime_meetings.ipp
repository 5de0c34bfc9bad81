// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of rt/runtime.hpp: what a driver does for workers that call the actors of each
// other: it says where these are and how a worker ended, and passes on replies that belong behind
// something it has to know.

#include <skein/core/constants.hpp>
#include <skein/core/sleep.hpp>
#include <skein/rt/detail/direct_state.hpp>
#include <skein/rt/detail/space_state.hpp>
#include <skein/wire/decode.hpp>
#include <skein/wire/encode.hpp>

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace skein::rt {

SKEIN_INLINE peer* runtime::link_of(std::uint64_t incarnation) const {
    for (const auto& l : state_->links)
        if (l->incarnation == incarnation) return l.get();
    return nullptr;
}

SKEIN_INLINE peer* runtime::link_at(peer_id number) const {
    for (const auto& l : state_->links)
        if (l->number == number) return l.get();
    return nullptr;
}

/// What only a worker says. False: it is nothing of that.
SKEIN_INLINE bool runtime::on_worker_asks(peer& from, const net::frame_view& f) {
    switch (f.kind) {
    case detail::message_where: on_where(from, f); return true;
    case detail::message_lost: on_lost(from, f.id); return true;
    case detail::message_relay: pass_on(from, f); return true;
    case detail::message_waits: on_waits(from, f); return true;
    case detail::message_space: detail::space_state::on_question(*this, from, f); return true;
    case detail::message_store: {
        const auto door = state_->replies.objects().start();
        if (!door.empty() && from.is_open()) from.send(detail::message_store, 0, 0, as_bytes(door));
        return true;
    }
    case detail::message_busy: from.calls_directly = f.flags != 0; return true;
    default: return false;
    }
}

// ---- where actors are --------------------------------------------------------------------------

SKEIN_INLINE void runtime::on_where(peer& from, const net::frame_view& f) {
    const auto asked = wire::decode<detail::where_question>(f.body);
    if (!asked)
        throw error(errc::malformed,
                    fmt::format("a question that cannot be read from {}", from.who));
    const actor_id id(asked->actor);
    const auto* const entry = state_->actors.find(id);
    if (entry == nullptr || entry->lasts() || !asked->is_cut_off) {
        if (entry != nullptr && entry->where == nullptr && !entry->lasts())
            return state_->actors.ask_where(id, from.number); // it is being made
        return tell_where(from.number, id, entry != nullptr ? entry->where : nullptr);
    }
    // Calls over its last link must not come behind those that go through here.
    if (entry->where != nullptr && entry->where->is_open())
        entry->where->send(detail::message_cut, 0, from.incarnation, {});
    detail::where_answer answer;
    answer.actor = id.value();
    answer.verdict = static_cast<std::uint8_t>(detail::whereabouts::through_driver);
    if (from.is_open()) from.send(detail::message_there, 0, 0, wire::encode(answer));
}

namespace detail {

/// Where `asker` reaches `where`, best first.
SKEIN_INLINE std::vector<std::string> addresses_for(const peer& asker, const peer& where) {
    std::vector<std::string> out;
    const bool same_host = asker.wire->peer().host == where.wire->peer().host;
    if (same_host && !where.near_address.empty()) out.push_back(where.near_address);
    auto far = net::address::parse(where.far_address);
    if (!far || (far->is_loopback() && !same_host)) return out;
    if (far->kind == net::scheme::tcp && far->host == "*") far->host = where.wire->peer_host();
    if (!far->host.empty()) out.push_back(to_string(*far));
    return out;
}

} // namespace detail

/// where: nullptr: it has ended, or it is one that is made again. how: it has ended, if the asker
/// is to hear more than a number.
SKEIN_INLINE void runtime::tell_where(peer_id asker, actor_id id, peer* where,
                                      std::string_view how) {
    auto* const to = link_at(asker);
    if (to == nullptr || !to->is_open()) return;
    const auto* const entry = state_->actors.find(id);
    auto verdict = detail::whereabouts::gone;
    detail::where_answer answer;
    answer.actor = id.value();
    if (entry == nullptr) {
        const auto queue = state_->actor_queues.find(id);
        const bool is_told = queue != state_->actor_queues.end() && queue->second->lost;
        if (how.empty() && is_told) how = queue->second->lost->what.text();
        answer.who = how;
    } else {
        verdict = detail::whereabouts::through_driver;
        if (!entry->lasts() && where != nullptr) {
            if (where != to) answer.addresses = detail::addresses_for(*to, *where);
            if (where == to || !answer.addresses.empty()) verdict = detail::whereabouts::at_worker;
            answer.incarnation = where->incarnation;
            answer.who = where->who;
        }
    }
    if (!answer.addresses.empty() && std::find(where->told_where.begin(), where->told_where.end(),
                                               asker) == where->told_where.end())
        where->told_where.push_back(asker);
    answer.verdict = static_cast<std::uint8_t>(verdict);
    to->send(detail::message_there, 0, 0, wire::encode(answer));
}

// ---- how workers end ---------------------------------------------------------------------------

/// The link of two workers broke: one of them may have died, which its own link tells in a moment.
SKEIN_INLINE void runtime::on_lost(peer& from, std::uint64_t incarnation) {
    auto* const at = link_of(incarnation);
    if (at == nullptr || state_->closing) return; // it was told already
    const bool is_new = at->asks_for_end.empty();
    at->asks_for_end.push_back(from.number);
    if (is_new) state_->direct->tasks.spawn(say_it_lives(this, incarnation));
}

SKEIN_INLINE task<void> runtime::say_it_lives(runtime* self, std::uint64_t incarnation) {
    co_await sleep_for(time_constants::lan().suspect_after);
    auto* const at = self->link_of(incarnation);
    if (at != nullptr && at->up) self->tell_end(*at, false, {});
}

SKEIN_INLINE void runtime::tell_end(peer& of, bool has_ended, const std::string& how) {
    auto to = std::exchange(of.asks_for_end, {});
    if (has_ended) to.insert(to.end(), of.told_where.begin(), of.told_where.end());
    std::sort(to.begin(), to.end());
    to.erase(std::unique(to.begin(), to.end()), to.end());
    const auto body = wire::encode(detail::worker_end{of.incarnation, has_ended, how});
    for (const auto number : to)
        if (auto* const l = link_at(number); l != nullptr && l->is_open())
            l->send(detail::message_end, 0, 0, body);
}

// ---- what belongs in order ---------------------------------------------------------------------

/// A reply of one worker to another. The handles in it are held by who gets it from now on.
SKEIN_INLINE void runtime::pass_on(peer& from, const net::frame_view& f) {
    wire::reader in(f.body);
    detail::relay_head head;
    detail::lending_reply parts;
    bool good = head.decode(in) && detail::is_outcome(f.flags);
    if (good && (f.flags & detail::reply_lends) != 0) {
        byte_span value = in.rest();
        std::vector<detail::object_use> uses; // these are counted by their store
        good = (f.flags & detail::reply_refs) == 0 || detail::take_uses(value, uses);
        good = good && parts.decode(value);
    }
    if (!good)
        throw error(errc::malformed, fmt::format("a reply that cannot be read from {}", from.who));
    auto* const to = link_of(head.worker);
    if (to == nullptr || !to->is_open()) return;
    for (const auto id : parts.actors) state_->actors.hold(to->number, id);
    wire::writer body;
    detail::relay_head{from.incarnation}.encode(body);
    body.raw(in.rest());
    net::frame out;
    out.kind = detail::message_relay;
    out.flags = f.flags;
    out.id = f.id;
    out.body = std::move(body).take();
    to->send(std::move(out));
}

/// A task leaves its cores to others while it waits for direct calls.
SKEIN_INLINE void runtime::on_waits(peer& from, const net::frame_view& f) {
    wire::reader in(f.body);
    unique_number id;
    if (!in.fixed(id.incarnation) || !in.fixed(id.number) || !in.finish())
        throw error(errc::malformed, fmt::format("a call that cannot be read from {}", from.who));
    if (f.flags != 0)
        state_->dispatch.cores().begin_wait(from.room, call_id(id));
    else
        state_->dispatch.cores().end_wait(from.room, call_id(id));
    if (state_->dispatch.waits()) pump_leases();
}

} // namespace skein::rt
