// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of rt/runtime.hpp: who holds handles to actors.
//
// An actor ends when nobody holds a handle to it: detail/holds.hpp counts them, here is what
// follows for actors, and how handles to actors and placement groups travel.

#include <skein/rt/detail/actor_terms.hpp>
#include <skein/rt/detail/ref_codec.hpp>
#include <skein/rt/detail/runtime_state.hpp>
#include <skein/rt/detail/space_state.hpp>
#include <skein/wire/decode.hpp>
#include <skein/wire/encode.hpp>
#include <skein/wire/reader.hpp>
#include <skein/wire/writer.hpp>

#include <algorithm>
#include <vector>

#include <fmt/format.h>

namespace skein::rt {

SKEIN_INLINE void runtime::drop_actor(detail::actor_queue& queue) noexcept {
    state_->actor_queues.erase(queue.id);
    if (state_->upstream == nullptr) return state_->actors.let_go(queue.id);
    const auto times = state_->borrowed.let_go(queue.id);
    if (times == 0 || !state_->upstream->wire->is_open()) return;
    state_->replies.told_driver();
    wire::writer body;
    detail::put_actor(body, queue.id);
    body.fixed(times);
    state_->upstream->wire->send(detail::message_release, 0, 0, body.bytes(), {});
}

SKEIN_INLINE counted_ptr<detail::actor_queue> runtime::borrow_actor(actor_id id,
                                                                    std::uint32_t max_pending) {
    const bool is_new = !state_->actor_queues.contains(id);
    auto queue = queue_for(id);
    if (is_new || queue->max_pending == 0) queue->max_pending = max_pending;
    if (is_new && state_->upstream != nullptr) state_->borrowed.borrow(id);
    return queue;
}

SKEIN_INLINE counted_ptr<detail::actor_queue> runtime::hold_actor(actor_id id,
                                                                  std::uint32_t max_pending) {
    auto queue = borrow_actor(id, max_pending);
    if (state_->upstream != nullptr) state_->borrowed.hold(id);
    return queue;
}

SKEIN_INLINE detail::replies& runtime::answers() noexcept { return state_->replies; }

/// Worker: a call is answered, and there are handles that came as arguments.
SKEIN_INLINE void runtime::tell_holds() {
    for (const auto id : state_->borrowed.tell())
        detail::send_actor(*state_->upstream, detail::message_hold, id);
}

/// The value of a call has handles in it: who gets it holds them before who gave it can let go.
SKEIN_INLINE void runtime::take_reply(peer& from, detail::call_base& call,
                                      const net::frame_view& f) {
    detail::lending_reply parts;
    if (!parts.decode(f.body))
        throw error(errc::malformed, fmt::format("a reply that cannot be read from {}", from.who));
    if (state_->upstream == nullptr && call.nested) {
        auto& passed = static_cast<detail::forwarded_call&>(call);
        passed.lends = true;
        if (passed.origin().up)
            for (const auto id : parts.actors) state_->actors.hold(passed.origin().number, id);
        return call.finish_with_bytes(f.body);
    }
    std::vector<counted_ptr<detail::actor_queue>> actor_queues;
    for (const auto id : parts.actors) actor_queues.push_back(hold_actor(id, 0));
    const detail::executing_mark by(this);
    call.finish_with_bytes(parts.value);
}

namespace detail {

SKEIN_INLINE void encode_handle(wire::writer& to, const counted_ptr<actor_queue>& queue) {
    if (!queue || pending_refs::current() != nullptr) { // then nobody reads it
        put_actor(to, actor_id());
        return to.fixed(std::uint32_t{0});
    }
    auto* const call = runtime::encoding();
    auto* const by = runtime::replying();
    auto* const owner = queue->owner;
    // Saved states are loaded by workers of the program, or namespace, whose they are.
    const runtime* const reader = call != nullptr    ? call->owner
                                  : by != nullptr    ? by
                                  : owner != nullptr ? &space_state::home_of(*owner)
                                                     : nullptr;
    const bool is_foreign = owner != reader;
    if (is_foreign && (owner == nullptr || space_state::space_server_of(*owner) == 0))
        throw error(errc::not_supported,
                    fmt::format("not supported: a handle to {} travels to another program "
                                "or namespace, where it is not known",
                                actor_title(queue->id, queue->name, queue->type)))
            .with_hint("an actor that others call is made .detached in a .space");
    if (is_foreign && !queue->is_detached)
        throw error(errc::not_supported,
                    fmt::format("not supported: a handle to {} of namespace \"{}\", which is "
                                "not detached, leaves its namespace",
                                actor_title(queue->id, queue->name, queue->type),
                                space_state::name_of(*owner)))
            .with_hint("make it .detached: then it does not end with its last handle");
    put_actor(to, queue->id);
    to.fixed(std::min(queue->max_pending, most_pending) |
             (queue->is_detached ? detached_handle : 0) | (is_foreign ? foreign_handle : 0));
    if (is_foreign) {
        const auto& space = space_state::name_of(*owner);
        to.fixed(space_state::space_server_of(*owner));
        to.fixed(static_cast<std::uint8_t>(space.size()));
        to.raw(as_bytes(space));
    }
    if (call != nullptr)
        call->keep(std::make_shared<counted_ptr<actor_queue>>(queue));
    else if (by != nullptr && is_foreign)
        by->answers().lend_abroad(queue);
    else if (by != nullptr)
        by->answers().lend(queue->id);
}

SKEIN_INLINE result<void> decode_handle(wire::reader& from, counted_ptr<actor_queue>& into) {
    actor_id id;
    std::uint32_t said = 0;
    if (!get_actor_id(from, id) || !from.fixed(said)) return from.status();
    if (!id) return {};
    auto* const here = runtime::executing();
    if (here == nullptr)
        return error(errc::not_supported,
                     "not supported: an actor_handle that is decoded outside of a call")
            .with_hint("handles travel in the arguments and results of calls, and in what "
                       "load() of an actor takes");
    if ((said & foreign_handle) == 0) {
        into = here->borrow_actor(id, said & most_pending);
    } else {
        std::uint64_t space_server = 0;
        std::uint8_t length = 0;
        byte_span name;
        if (!from.fixed(space_server) || !from.fixed(length) || !from.raw(length, name))
            return from.status();
        if (space_server == 0 || length == 0) {
            (void)from.fail(errc::malformed, "a handle of no namespace");
            return from.status();
        }
        auto& spaces = space_state::of(*here);
        const std::string space(as_text(name));
        if (spaces.visits.size() + spaces.past.size() >= space_state::most_visits &&
            !spaces.visits.contains({space, space_server}))
            return error(errc::exhausted,
                         fmt::format("this process has met {} space servers of namespaces already",
                                     space_state::most_visits));
        into = spaces.queue_of(space, space_server, id, said & most_pending);
    }
    if ((said & detached_handle) != 0) into->is_detached = true;
    return {};
}

SKEIN_INLINE void encode_group(wire::writer& to, const counted_ptr<group_state>& group) {
    if (!group || pending_refs::current() != nullptr) // then nobody reads it
        return wire::encode(to, group_answer());
    auto* const call = runtime::encoding();
    if (call == nullptr)
        throw error(errc::not_supported,
                    fmt::format("not supported: a handle to placement group {} outside of the "
                                "arguments of a call",
                                group->number))
            .with_hint("results and saved states have its name, for get_placement_group()");
    if (group->home == nullptr || group->home != &call->owner->groups())
        throw error(errc::not_supported,
                    fmt::format("not supported: a handle to placement group {} travels to another "
                                "program or namespace, where it is not known",
                                group->number));
    const auto number = group->number < first_of_worker ? group->number : group->at_driver;
    if (number == 0) {
        if (group->why) throw *group->why;
        throw error(errc::not_supported,
                    "not supported: a handle to a placement group that this worker has made "
                    "travels before its ready() has ended")
            .with_hint("co_await group.ready() first, or give the group a name and pass that");
    }
    wire::encode(to, told_of(*group, number));
    call->keep(std::make_shared<counted_ptr<group_state>>(group));
}

SKEIN_INLINE result<void> decode_group(wire::reader& from, counted_ptr<group_state>& into) {
    group_answer told;
    if (auto read = wire::decode(from, told); !read) return read;
    if (told.number == 0) return {};
    if (told.number >= first_of_worker || told.bundles.size() > most_bundles)
        return error(errc::malformed, "a handle to no placement group");
    auto* const here = runtime::executing();
    if (here == nullptr || !here->groups().has_driver())
        return error(errc::not_supported, "not supported: a handle to a placement group that is "
                                          "decoded outside of the arguments of a call");
    return here->groups().take(told, into);
}

} // namespace detail

} // namespace skein::rt
