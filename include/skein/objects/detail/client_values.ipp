// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of objects/store_client.hpp: where other stores are, and objects that come in
// messages where they cannot be reached.

#include <skein/core/error.hpp>
#include <skein/objects/detail/own_copy.hpp>

#include <algorithm>
#include <cstring>
#include <utility>

namespace skein::objects {

SKEIN_INLINE void store_client::tell_hub(const std::string& door, bool is_for_hosts) {
    if (!has_peers_) return;
    hub_note what;
    what.door = door;
    what.is_for_hosts = is_for_hosts;
    tell_in_order(what);
}

SKEIN_INLINE object_ptr adopt_value(store_client& by, const object_name& name, byte_span bytes) {
    if (name.store == 0 || name.bytes == 0 || bytes.size() != name.bytes)
        throw error(errc::malformed, "an object comes with other bytes than it has");
    by.want_link();                          // so that the stores meet
    if (by.known_.size() >= by.forget_at_) { // no word comes of those that no store has counted
        std::erase_if(by.known_, [](const auto& one) { return one.second.expired(); });
        by.forget_at_ = std::max<std::size_t>(256, 2 * by.known_.size());
    }
    auto& known = by.known_[name.key()];
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
    const std::optional<std::uint64_t> at_its_begin(0);
    auto made = std::make_shared<object>(name, std::move(own), at_its_begin, by.back_, 0);
    known = made;
    return made;
}

} // namespace skein::objects
