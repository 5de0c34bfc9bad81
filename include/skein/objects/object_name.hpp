// SPDX-License-Identifier: Apache-2.0
#pragma once
// How an object is named in messages: where it was made, which one it is, and where its bytes were in
// the arena of that store.

#include <skein/core/ids.hpp>

#include <cstdint>

namespace skein::objects {

/// A process that uses a store: its incarnation.
using process_id = strong_id<struct store_process_tag>;
/// An object of one store, never used again.
using object_number = strong_id<struct object_number_tag>;

/// What processes of one node tell each other of an object.
struct object_name {
    std::uint64_t store = 0; ///< which store has it; never 0, and never that of another program
    object_number number;
    std::uint64_t at = 0; ///< in the arena, when it was named: it may have moved since
    std::uint64_t bytes = 0;

    friend bool operator==(const object_name& a, const object_name& b) noexcept {
        return a.store == b.store && a.number == b.number && a.bytes == b.bytes;
    }
};

} // namespace skein::objects
