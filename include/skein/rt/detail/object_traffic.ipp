// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of rt/detail/object_traffic.hpp.

#include <skein/core/awaitable.hpp>
#include <skein/core/log.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/semaphore.hpp>
#include <skein/net/address.hpp>
#include <skein/objects/store_client.hpp>
#include <skein/rt/detail/message.hpp>
#include <skein/rt/detail/peer.hpp>
#include <skein/wire/decode.hpp>
#include <skein/wire/encode.hpp>

#include <chrono>
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

/// The home of an object is lost, or has no link with the store of this node.
[[nodiscard]] SKEIN_INLINE bool is_out_of_reach(const objects::store_client& store,
                                                const error& why) noexcept {
    return store.has_peers() && !store.is_lost() &&
           (why.code() == errc::object_lost || why.code() == errc::not_found);
}

/// This process has them all, whoever brought them: then they are the call's.
[[nodiscard]] SKEIN_INLINE bool have_known(const objects::store_client& store,
                                           arrived_objects& all) {
    std::vector<objects::object_ptr> held;
    for (const auto& use : all.uses) {
        auto one = store.find(use.name.key());
        if (!one || !one->is_here() || one->bytes() != use.name.bytes) return false;
        held.push_back(std::move(one));
    }
    all.held = std::move(held);
    all.why.reset();
    return true;
}

/// Of one peer so many calls ask for values at once: those behind them may find what came for the
/// first.
struct value_turns {
    semaphore free{2};
};

/// Asks who has sent a call for the values of its objects, and waits for them.
SKEIN_INLINE task<void> ask_for_values(std::shared_ptr<objects::store_client> store,
                                       std::shared_ptr<arrived_objects> all,
                                       std::shared_ptr<peer> from, slot_id call) {
    if (!from->wire) co_return;
    if (!from->value_turns) from->value_turns = std::make_shared<value_turns>();
    const auto turns = from->value_turns;
    co_await turns->free.acquire();
    const semaphore_permit mine(turns->free);
    if (!from->is_open() || have_known(*store, *all)) co_return;
    from->wants_values[call] = all;
    if (std::exchange(from->inbound.is_paused, false)) from->wire->resume_reading();
    from->send(message_values_wanted, 0, call.value(), {});
    while (!all->values_came.is_set() && from->is_open()) {
        auto waiting = all->values_came.wait_for(std::chrono::seconds(1));
        (void)co_await waiting;
    }
    from->wants_values.erase(call);
}

/// Until it has an answer, whatever becomes of the call.
SKEIN_INLINE task<void> claim_for(std::shared_ptr<objects::store_client> store,
                                  std::shared_ptr<arrived_objects> all, std::shared_ptr<peer> from,
                                  slot_id call) {
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
    if (all->why && is_out_of_reach(*store, *all->why) && !have_known(*store, *all)) {
        auto asking = ask_for_values(store, all, std::move(from), call);
        co_await asking;
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

SKEIN_INLINE void object_traffic::take_values(peer& from, slot_id call, bool has_failed,
                                              byte_span body) {
    const auto found = from.wants_values.find(call);
    if (found == from.wants_values.end()) return; // it is not wanted any more
    const auto all = found->second;
    from.wants_values.erase(found);
    std::vector<object_use> uses;
    std::vector<byte_span> values;
    if (!has_failed) {
        if (!take_uses(body, uses, &values) || uses.size() != all->uses.size())
            throw malformed(fmt::format("objects that cannot be read from {}", from.who));
        for (std::size_t i = 0; i < uses.size(); ++i) {
            if (!(uses[i].name == all->uses[i].name))
                throw malformed(fmt::format("other objects than were asked for from {}", from.who));
        }
        std::vector<objects::object_ptr> held;
        try {
            for (std::size_t i = 0; i < uses.size(); ++i)
                held.push_back(objects::adopt_value(*store_, uses[i].name, values[i]));
            all->held = std::move(held);
            all->why.reset();
        } catch (const error& e) {
            if (e.code() != errc::exhausted) throw;
            all->why = e; // of this call alone
        }
    } else if (auto said = decode_failure(body).what;
               said.code() != errc::object_lost && all->why) {
        all->why = std::move(said).with_cause(all->why->what());
    }
    all->values_came.set();
}

SKEIN_INLINE void object_traffic::forget_values(peer& from, slot_id call) {
    const auto found = from.wants_values.find(call);
    if (found != from.wants_values.end()) found->second->values_came.set();
}

SKEIN_INLINE task<byte_buffer> object_traffic::values_of(std::vector<object_use> uses,
                                                         std::vector<objects::object_ptr> all) {
    const auto store = store_;
    auto reading = store->read(std::move(all));
    const auto got = co_await reading;
    wire::writer out;
    append_values(out, std::move(uses), got);
    co_return std::move(out).take();
}

SKEIN_INLINE task<bool> object_traffic::reach(std::uint64_t store_number) {
    const auto store = store_;
    if (!store->has_peers()) co_return true;
    store->open();
    auto reaching = store->others().wait(store_number);
    co_return co_await reaching;
}

SKEIN_INLINE task<bool> object_traffic::give(std::vector<objects::object_ptr> all,
                                             objects::process_id to, std::uint64_t store_number) {
    const auto store = store_;
    for (const auto& one : all)
        if (one->is_own_copy()) co_return false;
    auto reaching = reach(store_number);
    if (!co_await reaching) co_return false;
    auto giving = as_result(store->give(std::move(all), to, store_number));
    const auto given = co_await giving;
    if (!given && !is_out_of_reach(*store, given.error())) throw given.error();
    co_return given.has_value();
}

SKEIN_INLINE std::shared_ptr<arrived_objects> object_traffic::claim(
    std::vector<object_use> uses, bool reads_views, const std::shared_ptr<peer>& from,
    slot_id call) {
    auto all = std::make_shared<arrived_objects>();
    all->uses = std::move(uses);
    all->reads_inside = reads_views;
    if (store_ == nullptr) {
        all->why =
            error(errc::not_supported, "not supported: an object of another host's store in a call")
                .with_hint("give the value instead of its ref");
        all->ready.set();
    } else {
        spawn(claim_for(store_, all, from, call));
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
    std::vector<byte_span> values;
    if (flags == reply_object) {
        wire::reader in(body);
        if (!wire::decode(in, names.emplace_back()))
            throw error(errc::malformed, "a reply whose object cannot be read");
        values.push_back(in.rest());
    } else {
        std::vector<object_use> uses;
        if (!take_uses(body, uses, &values))
            throw error(errc::malformed, "a reply whose objects cannot be read");
        for (const auto& one : uses) names.push_back(one.name);
    }
    std::vector<objects::object_name> given; // the others come along
    for (std::size_t i = 0; i < names.size(); ++i)
        if (values[i].empty()) given.push_back(names[i]);
    auto taken = store_->adopt(given, objects::process_id(from));
    if (given.size() == names.size()) return taken;
    std::vector<objects::object_ptr> all;
    auto next = taken.begin();
    for (std::size_t i = 0; i < names.size(); ++i)
        all.push_back(values[i].empty() ? std::move(*next++)
                                        : objects::adopt_value(*store_, names[i], values[i]));
    return all;
}

SKEIN_INLINE void object_traffic::drop(std::uint64_t from, std::uint16_t flags, byte_span& body) {
    if (!has_objects(flags) || store_ == nullptr) return;
    try {
        (void)adopt(from, flags, body);
    } catch (const error& e) {
        if (e.code() != errc::exhausted) throw; // no room for what nobody wants
    }
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
