// SPDX-License-Identifier: Apache-2.0
#pragma once
// How an object is named in messages: where it was made, which one it is, and where its bytes were in
// the arena of that store.

#include <skein/core/ids.hpp>

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace skein::objects {

/// A process that uses a store: its incarnation.
using process_id = strong_id<struct store_process_tag>;
/// An object of one store, never used again.
using object_number = strong_id<struct object_number_tag>;

/// Which object of which store.
struct object_key {
    std::uint64_t store = 0;
    object_number number;
    friend auto operator<=>(const object_key&, const object_key&) = default;
};

/// What processes tell each other of an object. The store is that of the node where it was made, its
/// home; on other nodes a copy lies somewhere else.
struct object_name {
    std::uint64_t store = 0; ///< which store has it; never 0, and never that of another program
    object_number number;
    std::uint64_t at = 0; ///< in the arena, when it was named: it may have moved since
    std::uint64_t bytes = 0;

    [[nodiscard]] object_key key() const noexcept { return {store, number}; }
    friend bool operator==(const object_name& a, const object_name& b) noexcept {
        return a.store == b.store && a.number == b.number && a.bytes == b.bytes;
    }
};

} // namespace skein::objects

template <>
struct std::hash<skein::objects::object_key> {
    std::size_t operator()(const skein::objects::object_key& k) const noexcept {
        return std::hash<std::uint64_t>()(k.store * 0x9e3779b97f4a7c15U + k.number.value());
    }
};
