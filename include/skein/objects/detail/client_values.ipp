// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of objects/store_client.hpp: which stores can be reached, and objects that come in
// messages where they cannot.

#include <skein/core/error.hpp>
#include <skein/core/loop.hpp>
#include <skein/objects/detail/own_copy.hpp>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

namespace skein::objects {

namespace detail {

/// For the stores of a program to meet, when the first object is to go to another node.
inline constexpr time_span stores_meet_within = std::chrono::seconds(3);

} // namespace detail

SKEIN_INLINE void store_client::tell_hub(const std::string& door, bool is_for_hosts) {
    if (!has_peers_) return;
    hub_note what;
    what.door = door;
    what.is_for_hosts = is_for_hosts;
    tell_in_order(what);
}

SKEIN_INLINE void store_client::hear_reached(const reached_note& what) {
    reached_ = what.stores;
    reach_news_.set();
}

SKEIN_INLINE bool store_client::reaches(std::uint64_t store) const {
    if (store == 0 || lost_) return false;
    return store == store_ || std::find(reached_.begin(), reached_.end(), store) != reached_.end();
}

SKEIN_INLINE task<bool> store_client::reach(std::uint64_t store) {
    const auto self = shared_from_this();
    want_link();
    if (!reach_by_)
        reach_by_ =
            deadline_after(loop::current().exact_now(), duration(detail::stores_meet_within));
    while (store != 0 && !lost_ && !reaches(store)) {
        if (loop::current().exact_now() >= *reach_by_) break;
        reach_news_.reset();
        auto waiting = reach_news_.wait_until(*reach_by_);
        (void)co_await waiting;
    }
    co_return reaches(store);
}

/// Of those that nobody has any more no word comes if no store has counted them.
SKEIN_INLINE void store_client::forget_gone() {
    if (known_.size() < forget_at_) return;
    std::erase_if(known_, [](const auto& one) { return one.second.expired(); });
    forget_at_ = std::max<std::size_t>(256, 2 * known_.size());
}

SKEIN_INLINE object_ptr store_client::adopt_value(const object_name& name, byte_span bytes) {
    if (name.store == 0 || name.bytes == 0 || bytes.size() != name.bytes)
        throw error(errc::malformed, "an object comes with other bytes than it has");
    want_link(); // so that the stores meet
    forget_gone();
    auto& known = known_[name.key()];
    auto there = known.lock();
    if (there && there->is_here()) return there;
    auto own = detail::own_memory(name.bytes);
    {
        const auto window = own.write(0, name.bytes);
        std::memcpy(window.bytes().data(), bytes.data(), bytes.size());
    }
    if (there) {
        there->settle(std::move(own), 0);
        return there;
    }
    auto made =
        std::make_shared<object>(name, std::move(own), std::optional<std::uint64_t>(0), back_, 0);
    known = made;
    return made;
}

} // namespace skein::objects
