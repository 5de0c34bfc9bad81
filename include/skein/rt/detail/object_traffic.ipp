// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of rt/detail/object_traffic.hpp.

#include <skein/core/awaitable.hpp>
#include <skein/core/log.hpp>
#include <skein/core/loop.hpp>
#include <skein/net/address.hpp>
#include <skein/objects/store_client.hpp>
#include <skein/rt/detail/message.hpp>
#include <skein/rt/detail/peer.hpp>
#include <skein/wire/decode.hpp>
#include <skein/wire/encode.hpp>

#include <cstring>
#include <utility>

#include <fmt/format.h>

namespace skein::rt::detail {

SKEIN_INLINE void object_traffic::use(std::shared_ptr<objects::store_client> store,
                                      unique_function<std::string()> start) {
    store_ = std::move(store);
    start_ = std::move(start);
}

SKEIN_INLINE std::string object_traffic::start() {
    auto door = start_ ? start_() : std::string();
    if (store_ != nullptr) store_->open(); // to say which processes have ended
    return door;
}

SKEIN_INLINE void object_traffic::hear_hub(std::string_view door, const std::string& host) {
    auto at = net::address::parse(door);
    if (!at) throw at.error();
    const bool is_for_hosts = at->kind == net::scheme::tcp && at->host == "*";
    if (is_for_hosts) at->host = host;
    if (store_ != nullptr) store_->tell_hub(to_string(*at), is_for_hosts);
}

SKEIN_INLINE bool object_traffic::are_here(const std::vector<objects::object_ptr>& all) noexcept {
    for (const auto& one : all)
        if (!one->is_here()) return false;
    return true;
}

SKEIN_INLINE task<void> object_traffic::bring(std::vector<objects::object_ptr> all) {
    const auto store = store_;
    auto bringing = store->bring(std::move(all));
    co_await bringing;
}

SKEIN_INLINE bool object_traffic::has_peers() const noexcept {
    return store_ != nullptr && store_->has_peers();
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

/// What the call reads stays where it is until it has ended.
SKEIN_INLINE task<void> read_for(std::shared_ptr<objects::store_client> store,
                                 std::shared_ptr<arrived_objects> all) {
    std::vector<objects::object_ptr> which;
    for (std::size_t i = 0; i < all->held.size(); ++i)
        if (all->reads(all->uses[i])) which.push_back(all->held[i]);
    auto reading = as_result(store->read(std::move(which)));
    auto got = co_await reading;
    all->bytes.resize(all->held.size());
    if (got) {
        auto next = got->begin();
        for (std::size_t i = 0; i < all->held.size(); ++i)
            if (all->reads(all->uses[i])) all->bytes[i] = std::move(*next++);
    } else {
        all->why = got.error();
    }
    all->ready.set();
}

/// Nobody need be asked for the bytes.
SKEIN_INLINE bool read_at_once(objects::store_client& store, arrived_objects& all) {
    all.bytes.resize(all.held.size());
    for (std::size_t i = 0; i < all.held.size(); ++i) {
        if (!all.reads(all.uses[i])) continue;
        all.bytes[i] = store.read_now(all.held[i]);
        if (!all.bytes[i]) {
            all.bytes.clear(); // calls that wait behind others pin nothing
            return false;
        }
    }
    return true;
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
    all->is_claimed = true;
    if (all->why || read_at_once(*store, *all)) {
        all->ready.set();
    } else if (all->is_next) {
        auto reading = read_for(store, all);
        co_await reading;
    }
}

SKEIN_INLINE void object_traffic::read(const std::shared_ptr<arrived_objects>& all) {
    if (std::exchange(all->is_next, true) || !all->is_claimed || all->ready.is_set()) return;
    spawn(read_for(store_, all));
}

SKEIN_INLINE std::shared_ptr<arrived_objects> object_traffic::claim(std::vector<object_use> uses,
                                                                    bool reads_views) {
    auto all = std::make_shared<arrived_objects>();
    all->uses = std::move(uses);
    all->reads_inside = reads_views;
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

SKEIN_INLINE bool object_traffic::has_lost_store() const noexcept {
    return store_ != nullptr && store_->is_lost();
}

/// With the bytes in it; nothing: there is no room.
SKEIN_INLINE task<std::optional<objects::fresh_object>> written_object(
    std::shared_ptr<objects::store_client> store, byte_span bytes) {
    if (store == nullptr) co_return std::nullopt;
    auto creating = store->create(bytes.size(), room_patience);
    auto made = co_await creating;
    if (made) std::memcpy(made->bytes().data(), bytes.data(), bytes.size());
    co_return made;
}

SKEIN_INLINE task<objects::object_ptr> object_traffic::make(byte_span bytes) {
    const auto store = store_;
    auto writing = written_object(store, bytes);
    auto made = co_await writing;
    if (!made) co_return nullptr;
    auto sealing = store->seal(std::move(*made));
    co_return co_await sealing;
}

SKEIN_INLINE task<std::optional<objects::object_name>> object_traffic::make_for(
    objects::process_id to, byte_span bytes) {
    const auto store = store_;
    auto writing = written_object(store, bytes);
    auto made = co_await writing;
    if (!made) co_return std::nullopt;
    const auto name = made->name();
    auto sealing = store->seal(std::move(*made), to);
    (void)co_await sealing;
    co_return name;
}

} // namespace skein::rt::detail
