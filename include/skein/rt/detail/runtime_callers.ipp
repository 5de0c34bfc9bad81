// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of rt/runtime.hpp: a worker is called by others, and by itself, without its
// driver.
//
// What comes over such a link is believed as far as calls go, no further: anything else ends it.
// The calls run in the executor; a reply that must come behind what the driver was told goes
// through the driver, see detail/driver_news.hpp.

#include <skein/core/awaitable.hpp>
#include <skein/core/constants.hpp>
#include <skein/core/log.hpp>
#include <skein/rt/detail/direct_state.hpp>
#include <skein/rt/detail/runtime_streams.hpp>
#include <skein/rt/detail/space_state.hpp>
#include <skein/rt/worker_link.hpp>
#include <skein/wire/decode.hpp>
#include <skein/wire/encode.hpp>

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include <fmt/format.h>

namespace skein::rt {

SKEIN_INLINE void peer::send(std::uint16_t what, std::uint16_t flags, std::uint64_t id,
                             byte_span body) {
    if (wire) return wire->send(what, flags, id, body, {});
    loopback->push({what, flags, id, loopback->body_of(body), {}, {}});
}

SKEIN_INLINE void peer::send(net::frame f) {
    if (wire) return wire->send(std::move(f));
    loopback->push({f.kind, f.flags, f.id, std::move(f.body), {}, {}});
}

// ---- doors -------------------------------------------------------------------------------------

SKEIN_INLINE void runtime::open_to_workers(net::network& via, const net::token& secret,
                                           const net::address& near, const net::address& far) {
    auto& direct = *state_->direct;
    direct.via = &via;
    direct.secret = secret;
    net::acceptor_options bounds; // many workers call at the same time, while this one computes
    bounds.places = 4096;
    bounds.places_per_address = 4096;
    const auto open = [&](const net::address& at) -> std::string {
        if (at.host.empty()) return {};
        try {
            const detail::direct_hello hello{state_->incarnation, 0, 0,
                                             state_->replies.objects().store_number()};
            direct.doors.push_back(std::make_unique<net::link_endpoint>(
                via, at, detail::direct_options(*this, secret, at.is_unix(), hello),
                worker_links(*this, time_constants::lan().worker_resume),
                net::link_table_bounds{65'536, 65'536}, bounds));
            auto where = direct.doors.back()->local();
            if (at.kind == net::scheme::tcp && !at.is_loopback()) where.host = at.host;
            return to_string(where);
        } catch (const error& e) {
            logging::debug("rt", "other workers cannot call this one there",
                           {{"at", to_string(at)}, {"why", e.what()}});
            return {};
        }
    };
    direct.near_address = open(near);
    direct.far_address = open(far);
}

SKEIN_INLINE detail::worker_hello runtime::hello() const {
    detail::worker_hello out;
    out.incarnation = state_->incarnation;
    out.near_address = state_->direct->near_address;
    out.far_address = state_->direct->far_address;
    if (state_->home == nullptr && state_->space_server == 0) out.space = state_->space;
    const auto& objects = state_->replies.objects();
    out.store = objects.store_number();
    out.has_store = state_->upstream == nullptr && objects.has_store() && objects.has_peers();
    return out;
}

SKEIN_INLINE task<void> runtime::serve_door(runtime* self, net::link_endpoint* door) {
    auto served = as_result(door->serve(
        [self](net::link::handle wire) { return serve_caller(self, std::move(wire)); }));
    (void)co_await served; // without it its actors are called through the driver
}

/// Serves a worker that calls actors here. Of the links of one worker only the newest counts.
SKEIN_INLINE task<void> runtime::serve_caller(runtime* self, std::shared_ptr<net::channel> wire) {
    auto& direct = *self->state_->direct;
    const auto hello = wire::decode<detail::direct_hello>(wire->peer().extra);
    const auto own = self->state_->incarnation;
    auto* newest = hello && hello->incarnation != 0 && hello->incarnation != own &&
                           hello->wanted == own && !self->state_->closing
                       ? &direct.newest[hello->incarnation]
                       : nullptr;
    if (newest == nullptr || hello->generation <= *newest) {
        wire->abort(error(errc::refused, wire->peer_name() + " is not awaited here (any more)"));
        co_return;
    }
    *newest = hello->generation;
    self->cut_caller(hello->incarnation);
    auto l = std::make_shared<peer>();
    l->role = detail::peer_role::accepted;
    l->wire = std::move(wire);
    l->number = peer_id(++self->state_->last_link);
    const auto& who = l->wire->peer();
    l->who = fmt::format("{} (pid {} at {})", who.name, who.pid, who.host);
    l->incarnation = hello->incarnation;
    l->store = hello->store;
    direct.callers.push_back(l);
    self->state_->executor.add_caller(*l);
    self->listen_to(l);
    auto ended = self->wait_end(l);
    co_await ended;
    self->state_->executor.drop_calls(*l);
    self->state_->executor.remove_caller(*l);
    std::erase(direct.callers, l);
}

/// Nothing more is heard over the links of that worker.
SKEIN_INLINE void runtime::cut_caller(std::uint64_t incarnation) {
    for (const auto& one : state_->direct->callers) {
        if (one->incarnation != incarnation || !one->is_open()) continue;
        one->abort(error(errc::reset, "a newer link has taken its place"));
        state_->executor.drop_calls(*one);
    }
}

/// Ends all links to other workers.
SKEIN_INLINE task<void> runtime::leave_others() {
    auto& direct = *state_->direct;
    for (const auto& door : direct.doors) door->close();
    direct.tasks.cancel();
    auto left = as_result(shield(direct.tasks.join()));
    (void)co_await left;
    direct.doors.clear();
    direct.targets.clear();
    direct.via = nullptr;
}

// ---- frames ------------------------------------------------------------------------------------

SKEIN_INLINE void runtime::on_direct_frame(const std::shared_ptr<peer>& from,
                                           const net::frame_view& f) {
    const bool calls = from->role != detail::peer_role::dialled;
    const bool answers = from->role != detail::peer_role::accepted;
    if (f.kind == detail::message_reply && answers) return on_reply(*from, f);
    if (f.kind == detail::message_item && answers) return streams::on_item(*this, *from, f);
    if (f.kind == detail::message_taken && calls) return streams::on_taken(*from, f);
    if (f.kind == detail::message_values_wanted && answers)
        return object_replies::values_wanted(*this, *from, slot_id(f.id));
    if (f.kind == detail::message_values && calls) return object_replies::values(*this, *from, f);
    if (f.kind == detail::message_cancel && calls) return on_cancel(*from, slot_id(f.id), false);
    if (f.kind == detail::message_started && answers)
        return credits::on_started(*this, *from, slot_id(f.id));
    if (f.kind == detail::message_held && answers)
        return credits::on_held(*this, *from, slot_id(f.id));
    if (f.kind != detail::message_call || !calls)
        throw error(errc::malformed,
                    fmt::format("frame of unknown kind {} from {}, which {}", f.kind, from->who,
                                calls ? "calls actors here" : "is called"));
    if (from->role != detail::peer_role::here || !state_->closing)
        state_->executor.arrived(from, f); // looks at it
}

/// What only a driver says. False: it is nothing of that.
SKEIN_INLINE bool runtime::on_driver_says(peer& driver, const net::frame_view& f) {
    switch (f.kind) {
    case detail::message_store:
        state_->replies.objects().hear_hub(as_text(f.body), driver.wire->peer_host());
        return true;
    case detail::message_there: on_there(f); return true;
    case detail::message_end: on_end(f); return true;
    case detail::message_relay: on_relayed(f); return true;
    case detail::message_cut:
        state_->direct->newest[f.id] = std::numeric_limits<std::uint64_t>::max();
        cut_caller(f.id);
        return true;
    case detail::message_space_there:
        if (state_->home != nullptr) return false; // a space server does not say where others are
        detail::space_state::on_answer(*this, f);
        return true;
    case detail::message_space_end:
        if (state_->home != nullptr) return false;
        detail::space_state::on_end(*this, f);
        return true;
    default: return false;
    }
}

/// A reply of another worker that had to come by way of the driver.
SKEIN_INLINE void runtime::on_relayed(const net::frame_view& f) {
    wire::reader in(f.body);
    detail::relay_head head;
    if (!head.decode(in) || !detail::is_outcome(f.flags))
        throw error(errc::malformed, "a reply that was passed on and cannot be read");
    net::frame_view reply;
    reply.flags = f.flags;
    reply.id = f.id;
    reply.body = in.rest();
    const auto index = static_cast<std::uint32_t>(f.id);
    auto* const call = index < state_->slots.size() && state_->slots[index].generation == f.id >> 32
                           ? state_->slots[index].call.get()
                           : nullptr;
    if (call == nullptr || call->on == nullptr || call->on->incarnation != head.worker ||
        call->on->role != detail::peer_role::dialled)
        return refuse_relayed(head.worker, reply);
    peer& from = *call->on;
    if (!streams::open_end(from, *call, reply, true)) return;
    settle(from, free_slot(slot_id(f.id)), reply);
}

/// Nobody waits for it any more; but the driver counts the handles in it as held here.
SKEIN_INLINE void runtime::refuse_relayed(std::uint64_t worker, const net::frame_view& f) {
    byte_span body = f.body;
    state_->replies.objects().drop(worker, f.flags, body);
    detail::lending_reply parts;
    const bool lends = (f.flags & detail::reply_lends) != 0;
    if (!lends || !parts.decode(body)) return;
    std::vector<counted_ptr<detail::actor_queue>> actor_queues;
    for (const auto id : parts.actors) actor_queues.push_back(hold_actor(id, 0));
}

/// Worker: the same of a call that had ended, by its deadline, before its answer came.
SKEIN_INLINE void runtime::give_back(detail::call_base& call, std::uint64_t worker,
                                     const net::frame_view& f) {
    if (f.flags == detail::reply_ok) return call.give_back(*this, f.body);
    refuse_relayed(worker, f);
}

// ---- calls of this process to itself -----------------------------------------------------------

SKEIN_INLINE peer& runtime::here() {
    auto& direct = *state_->direct;
    if (!direct.here) {
        direct.here = std::make_shared<peer>();
        direct.here->role = detail::peer_role::here;
        direct.here->loopback = &direct;
        direct.here->who = state_->name.describe();
        direct.here->incarnation = state_->incarnation;
        direct.here->store = state_->replies.objects().store_number();
        state_->executor.add_caller(*direct.here);
    }
    return *direct.here;
}

SKEIN_INLINE detail::kept_actors runtime::state::listener::keep_lent(
    const detail::lent_actors& all) {
    const auto& of = *self.state_;
    detail::kept_actors kept(all.foreign().begin(), all.foreign().end());
    for (const auto one : all.known())
        if (const auto queue = of.actor_queues.find(one); queue != of.actor_queues.end())
            kept.emplace_back(queue->second);
    return kept;
}

SKEIN_INLINE void runtime::state::listener::send_along(detail::kept_actors all) {
    auto& next = self.state_->direct->kept_next;
    next.insert(next.end(), std::move_iterator(all.begin()), std::move_iterator(all.end()));
}

SKEIN_INLINE void detail::direct_state::push(loopback_frame f) {
    f.kept = std::exchange(kept_next, {});
    frames.push_back(std::move(f));
    if (std::exchange(is_delivering, true)) return;
    loop::current().post([anchor = self.state_->anchor] {
        if (anchor->self != nullptr) anchor->self->state_->direct->deliver();
    });
}

SKEIN_INLINE void detail::direct_state::deliver() {
    is_delivering = false;
    auto all = std::exchange(frames, std::move(spare_frames));
    for (auto& f : all) {
        net::frame_view view;
        view.kind = f.kind;
        view.flags = f.flags;
        view.id = f.id;
        view.body = f.body;
        const executing_mark by(f.kept.empty() ? executing_mark::current() : &self);
        try {
            if (!f.given)
                self.on_frame(here, view);
            else if (!self.state_->closing)
                self.state_->executor.arrived(here, std::move(f.given));
        } catch (const error& e) { // as it would end a link
            if (f.kind == message_call)
                self.answers().reply_failure(*here, slot_id(f.id), {e, nullptr});
        }
    }
    take_back(std::move(all));
}

SKEIN_INLINE byte_buffer detail::direct_state::body_of(byte_span bytes) {
    if (spare_bodies.empty()) return to_buffer(bytes);
    auto body = std::move(spare_bodies.back());
    spare_bodies.pop_back();
    body.assign(bytes.begin(), bytes.end());
    return body;
}

SKEIN_INLINE void detail::direct_state::take_back(std::vector<loopback_frame> delivered) {
    for (auto& f : delivered)
        if (spare_bodies.size() < most_spare && f.body.capacity() > 0 &&
            f.body.capacity() <= most_spare_bytes)
            spare_bodies.push_back(std::move(f.body));
    delivered.clear();
    if (delivered.capacity() <= most_spare) spare_frames = std::move(delivered);
}

} // namespace skein::rt
