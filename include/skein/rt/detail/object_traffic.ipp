// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of rt/detail/object_traffic.hpp.

#include <skein/core/awaitable.hpp>
#include <skein/core/log.hpp>
#include <skein/core/loop.hpp>
#include <skein/objects/store_client.hpp>
#include <skein/rt/detail/message.hpp>
#include <skein/rt/detail/peer.hpp>
#include <skein/rt/detail/replies.hpp>
#include <skein/wire/decode.hpp>
#include <skein/wire/encode.hpp>

#include <cstring>
#include <exception>
#include <optional>
#include <utility>

#include <fmt/format.h>

namespace skein::rt::detail {

SKEIN_INLINE void object_traffic::use(std::shared_ptr<objects::store_client> store,
                                      unique_function<void()> start) {
    store_ = std::move(store);
    start_ = std::move(start);
}

SKEIN_INLINE void object_traffic::start() {
    if (start_) start_();
    if (store_ != nullptr) store_->open(); // to say which processes have ended
}

/// Its end is nobody's, and an error of it no end of others.
SKEIN_INLINE task<void> run_alone(task<void> work) {
    auto ended = as_result(std::move(work));
    const auto done = co_await ended;
    if (!done && done.error().code() != errc::cancelled)
        logging::warn("objects", "an object did not get where it was to go",
                      {{"why", done.error().what()}});
}

SKEIN_INLINE void object_traffic::spawn(task<void> work) {
    const task_context::use none(nullptr); // it goes on when the call has ended
    tasks_.spawn(run_alone(std::move(work)));
}

SKEIN_INLINE task<void> object_traffic::close() {
    tasks_.cancel();
    auto joined = as_result(shield(tasks_.join()));
    (void)co_await joined;
}

/// Until it has an answer, whatever becomes of the call.
SKEIN_INLINE task<void> claim_for(std::shared_ptr<objects::store_client> store,
                                  std::shared_ptr<arrived_objects> all) {
    std::vector<objects::object_name> names;
    names.reserve(all->uses.size());
    for (const auto& one : all->uses) names.push_back(one.name);
    auto claiming = as_result(store->claim(std::move(names)));
    auto held = co_await claiming;
    if (held) {
        all->held = std::move(*held);
        for (std::size_t i = 0; i < all->held.size(); ++i)
            if (!all->held[i] && !all->why)
                all->why = error(errc::not_found,
                                 fmt::format("object {} is gone: nobody holds it any more",
                                             all->uses[i].name.number.value()));
    } else {
        all->why = held.error();
    }
    all->ready.set();
}

SKEIN_INLINE std::shared_ptr<arrived_objects> object_traffic::claim(std::vector<object_use> uses) {
    auto all = std::make_shared<arrived_objects>();
    all->uses = std::move(uses);
    if (store_ == nullptr) {
        all->why =
            error(errc::not_supported, "not supported: an object of another host's store in a call")
                .with_hint("give the value instead of its ref");
        all->ready.set();
    } else {
        spawn(claim_for(store_, all));
    }
    return all;
}

SKEIN_INLINE std::vector<objects::object_ptr> object_traffic::adopt(std::uint64_t from,
                                                                    std::uint16_t flags,
                                                                    byte_span& body) {
    if (store_ == nullptr)
        throw error(errc::not_supported,
                    "not supported: a reply that is an object of another host's store");
    std::vector<objects::object_name> names;
    if (flags == reply_object) {
        if (auto read = wire::decode(body, names.emplace_back()); !read) throw read.error();
    } else {
        std::vector<object_use> uses;
        if (!take_uses(body, uses))
            throw error(errc::malformed, "a reply whose objects cannot be read");
        for (const auto& one : uses) names.push_back(one.name);
    }
    return store_->adopt(names, objects::process_id(from));
}

SKEIN_INLINE void object_traffic::drop(std::uint64_t from, std::uint16_t flags, byte_span& body) {
    if (has_objects(flags) && store_ != nullptr) (void)adopt(from, flags, body);
}

SKEIN_INLINE void object_traffic::lost(std::uint64_t incarnation, bool has_ended) {
    if (store_ != nullptr) store_->lost(objects::process_id(incarnation), has_ended);
}

SKEIN_INLINE task<objects::object_ptr> object_traffic::make(byte_span bytes) {
    const auto store = store_;
    if (store == nullptr) co_return nullptr;
    auto creating = store->create(bytes.size(), room_patience);
    auto made = co_await creating;
    if (!made) co_return nullptr;
    std::memcpy(made->bytes().data(), bytes.data(), bytes.size());
    auto sealing = store->seal(std::move(*made));
    co_return co_await sealing;
}

/// An object that its maker holds for somebody else from the start; nothing: no room, or no store.
SKEIN_INLINE task<std::optional<objects::object_name>> make_for(
    std::shared_ptr<objects::store_client> store, const outgoing_value* value,
    objects::process_id to) {
    const auto bytes = value->stored();
    auto creating = store->create(bytes.size(), room_patience);
    auto made = co_await creating;
    if (!made) co_return std::nullopt;
    const auto name = made->name();
    std::memcpy(made->bytes().data(), bytes.data(), bytes.size());
    auto sealing = store->seal(std::move(*made), to);
    (void)co_await sealing;
    co_return name;
}

/// Its caller hears of it in any case: why it cannot have the value, if it cannot.
template <class Reply>
void reply_or_fail(replies& by, peer& to, slot_id id, Reply reply) {
    std::optional<error> why;
    try {
        reply();
    } catch (const error& e) {
        why = e;
    } catch (const std::exception& e) {
        why = error(errc::exhausted, e.what());
    }
    if (why) by.reply_failure(to, id, {std::move(*why), nullptr});
}

SKEIN_INLINE task<void> send_value(replies* by, std::shared_ptr<objects::store_client> store,
                                   std::shared_ptr<peer> to, slot_id id,
                                   std::unique_ptr<outgoing_value> value) {
    auto making = as_result(make_for(store, value.get(), objects::process_id(to->incarnation)));
    const auto name = co_await making;
    if (!name && name.error().code() == errc::cancelled) throw name.error();
    reply_or_fail(*by, *to, id, [&] {
        if (name && *name)
            by->reply_as(*to, id, reply_object, [&](wire::writer& w) { wire::encode(w, **name); });
        else
            by->reply_as(*to, id, reply_ok, [&](wire::writer& w) { value->encode(w); });
    });
}

SKEIN_INLINE void object_traffic::send_object(replies& by, std::shared_ptr<peer> to, slot_id id,
                                              std::unique_ptr<outgoing_value> value) {
    spawn(send_value(&by, store_, std::move(to), id, std::move(value)));
}

SKEIN_INLINE task<void> pass_on_held(replies* by, std::shared_ptr<objects::store_client> store,
                                     std::shared_ptr<peer> to, slot_id id, std::uint16_t flags,
                                     byte_buffer body, std::vector<objects::object_ptr> all) {
    auto giving = as_result(store->give(all, objects::process_id(to->incarnation)));
    const auto given = co_await giving;
    if (!given && given.error().code() == errc::cancelled) throw given.error();
    reply_or_fail(*by, *to, id, [&] {
        if (!given) throw given.error();
        by->reply_as(*to, id, flags, [&](wire::writer& w) { w.raw(body); });
    });
}

SKEIN_INLINE void object_traffic::pass_on(replies& by, std::shared_ptr<peer> to, slot_id id,
                                          std::uint16_t flags, byte_buffer body,
                                          std::vector<objects::object_ptr> all) {
    spawn(pass_on_held(&by, store_, std::move(to), id, flags, std::move(body), std::move(all)));
}

} // namespace skein::rt::detail
