// SPDX-License-Identifier: Apache-2.0
#pragma once
// Copies in memory of one process alone, of objects that find no room in the store of its node.

#include <skein/core/error.hpp>
#include <skein/core/task.hpp>
#include <skein/core/units.hpp>
#include <skein/net/requests.hpp>
#include <skein/objects/arena.hpp>
#include <skein/objects/object_name.hpp>
#include <skein/objects/store_messages.hpp>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <new>

#include <fmt/format.h>

namespace skein::objects::detail {

///   errors  exhausted: this process has no room either
[[nodiscard]] inline arena own_memory(std::uint64_t bytes) {
    try {
        return arena::in_memory(bytes);
    } catch (const std::bad_alloc&) {
        throw error(errc::exhausted, fmt::format("an object of {} finds no room, neither in the "
                                                 "store of its node nor in this process",
                                                 binary_bytes(bytes)))
            .with_hint("SKEIN_STORE=4GiB makes the store larger");
    }
}

inline void put_part(arena& into, std::uint64_t at, std::uint64_t wanted, const byte_buffer& part) {
    if (part.size() != wanted)
        throw error(errc::malformed,
                    "the store gives other bytes of an object than were asked for");
    const auto window = into.write(at, wanted);
    std::memcpy(window.bytes().data(), part.data(), part.size());
}

/// Of an object of another node.
///   errors  exhausted; those of far_read_request and of the link
[[nodiscard]] inline task<arena> copy_of_far(net::requests::handle over, object_name which) {
    auto own = own_memory(which.bytes);
    for (std::uint64_t at = 0; at < which.bytes; at += chunk_bytes) {
        far_read_request what;
        what.which = which;
        what.at = at;
        what.bytes = std::min(chunk_bytes, which.bytes - at);
        auto asking = over->call<far_read_reply>(what);
        const auto part = co_await asking;
        put_part(own, at, what.bytes, part.bytes);
    }
    co_return own;
}

/// Of one that is in a file.
///   errors  exhausted; those of fetch_request and of the link
[[nodiscard]] inline task<arena> copy_of_away(net::requests::handle over, object_name which) {
    auto own = own_memory(which.bytes);
    for (std::uint64_t at = 0; at < which.bytes; at += file_piece) {
        fetch_request what;
        what.which = which.number;
        what.piece = static_cast<std::uint32_t>(at / file_piece);
        auto asking = over->call<fetch_reply>(what);
        const auto part = co_await asking;
        put_part(own, at, std::min(file_piece, which.bytes - at), part.bytes);
    }
    co_return own;
}

} // namespace skein::objects::detail
