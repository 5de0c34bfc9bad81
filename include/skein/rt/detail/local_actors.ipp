// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of rt/detail/local_actors.hpp.

#include <skein/core/constants.hpp>
#include <skein/core/log.hpp>
#include <skein/core/type_name.hpp>
#include <skein/net/frame.hpp>
#include <skein/rt/detail/actor_name.hpp>
#include <skein/rt/detail/actor_terms.hpp>
#include <skein/rt/detail/call_context.hpp>
#include <skein/rt/detail/message.hpp>
#include <skein/rt/detail/peer.hpp>

#include <exception>
#include <utility>

#include <fmt/format.h>

namespace skein::rt::detail {

SKEIN_INLINE void local_actors::insert(actor_id id, counted_ptr<actor_box> box) {
    box->id = id;
    boxes_.erase(id); // a driver gives no id twice
    boxes_.enter(id, std::move(box));
}

SKEIN_INLINE bool local_actors::kill(actor_id id) {
    auto* const found = boxes_.find(id);
    if (found == nullptr) return false;
    (*found)->over = "was killed";
    boxes_.erase(id);
    return true;
}

SKEIN_INLINE void local_actors::leave() {
    const auto* const context = call_context::current();
    auto* const found = context != nullptr && context->is_call() && context->actor
                            ? boxes_.find(context->actor)
                            : nullptr;
    if (found == nullptr)
        throw error(errc::invalid_argument,
                    "leave_actor() is called by something that is no method of an actor")
            .with_hint("kill(handle) ends an actor from outside");
    if (!(*found)->last) (*found)->last = context->who.id;
}

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

SKEIN_INLINE void local_actors::method_ended(peer& to, actor_box& box, bool changes) {
    if (box.last && box.last == call_context::current()->who.id && box.over == nullptr) {
        box.over = "has left";
        above_.actor_has_left(box.id);
        boxes_.erase(box.id);
        return;
    }
    if (!changes || box.save_every == 0 || box.over != nullptr ||
        ++box.not_saved < box.save_every || !to.is_open())
        return;
    box.not_saved = 0;
    save(to, box);
}

/// The state of an actor goes to its driver.
SKEIN_INLINE void local_actors::save(peer& to, const actor_box& box) {
    wire::writer saved;
    try {
        box.save(saved);
    } catch (const error& e) {
        if (e.code() != errc::too_large) throw; // save() has thrown
        throw state_not_kept(box, e);
    }
    constexpr std::size_t head = std::size_t{64} << 10; // of the message that makes it again
    if (saved.size() + box.made_from + head > limit::frame_bytes)
        throw state_not_kept(
            box, error(errc::too_large,
                       fmt::format("it has {} bytes and the actor's arguments {}, together more "
                                   "than one message takes",
                                   saved.size(), box.made_from)));
    wire::writer body;
    put_actor(body, box.id);
    body.raw(saved.bytes());
    net::frame f;
    f.kind = message_snapshot;
    f.body = std::move(body).take();
    to.send(std::move(f));
}

SKEIN_INLINE void local_actors::method_failed(peer& to, actor_box& box, bool changes) noexcept {
    try {
        method_ended(to, box, changes);
    } catch (...) {
        try {
            logging::warn("rt", fmt::format("the state of {} was not saved: {}",
                                            actor_title(box.id, box.name, &box.type),
                                            to_error(std::current_exception()).what()));
        } catch (...) { // no memory for a line
        }
    }
}

SKEIN_INLINE result<void> set_terms(actor_box& box, const actor_terms& terms, byte_span snapshot) {
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

} // namespace skein::rt::detail
