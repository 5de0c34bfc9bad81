// SPDX-License-Identifier: Apache-2.0
#pragma once
// What processes and the store of their node say to each other, over a link of each process with it.
// They come in order; create and pin alone may wait.

#include <skein/core/bytes.hpp>
#include <skein/net/message.hpp>
#include <skein/objects/object_name.hpp>
#include <skein/objects/store_book.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace skein::objects {

/// A process tells who it is, in its identity::extra.
struct store_hello {
    process_id process;
};

/// Asks for room for an object.
///   errors  too_large: more than the store has; exhausted: there was no room for so long
struct create_request {
    static constexpr std::uint16_t number = 1;
    std::uint64_t bytes = 0;
    std::uint32_t patience_ms = 0; ///< 0: it does not wait
};
struct create_reply {
    static constexpr std::uint16_t number = 2;
    object_name name;
};
/// It is written.
struct seal_request {
    static constexpr std::uint16_t number = 3;
    object_number which;
    process_id to; ///< held by that process then, instead of its maker; none: by its maker
};
/// Held for another process, too. At most most_names.
struct give_request {
    static constexpr std::uint16_t number = 4;
    std::vector<object_number> which;
    process_id to;
};
/// seal and give have been done.
struct done_reply {
    static constexpr std::uint16_t number = 5;
};
/// Held by who asks, too. At most most_names.
struct claim_request {
    static constexpr std::uint16_t number = 6;
    std::vector<object_number> which;
};
struct claim_reply {
    static constexpr std::uint16_t number = 7;
    std::vector<extent> where; ///< in the order of the question; no bytes: it is gone
};
/// How often one object is not held any more, and how often not read.
struct let_go {
    object_number which;
    std::uint32_t times = 0, pins = 0;
};
/// It has heard of what was given to it. At most most_names.
struct take_note {
    static constexpr std::uint16_t number = 9;
    std::vector<object_number> which;
    process_id from;
};
/// It hears of no more gifts of that process.
struct decline_note {
    static constexpr std::uint16_t number = 10;
    process_id from;
    bool has_ended = false; ///< said by the driver, which sees the ends of all processes
};
/// At most most_names.
struct release_note {
    static constexpr std::uint16_t number = 8;
    std::vector<let_go> all;
};

/// Reads what it holds: where it is it stays until it is unpinned. What is away is read back first,
/// which waits for room, but not for ever. At most most_names.
///   errors  io, corrupt: what is away cannot be read
struct pin_request {
    static constexpr std::uint16_t number = 11;
    std::vector<object_number> which;
};
struct pin_reply {
    static constexpr std::uint16_t number = 12;
    /// In the order of the question; no bytes: it is not held; at `away`: there is no room for it, and
    /// it is to be fetched.
    std::vector<extent> where;
    static constexpr std::uint64_t away = ~std::uint64_t{0};
};
/// Bytes of an object for which there is no room: a piece of file_piece bytes, or less at the end.
///   errors  not_found: it is not held, or not away; io, corrupt
struct fetch_request {
    static constexpr std::uint16_t number = 13;
    object_number which;
    std::uint32_t piece = 0, unused = 0;
};
struct fetch_reply {
    static constexpr std::uint16_t number = 14;
    byte_buffer bytes;
};
/// The store says whether all that this process holds stays where it is, so that it need not ask
/// before it reads. At the start it must.
struct roomy_note {
    static constexpr std::uint16_t number = 15;
    bool is_roomy = false;
};
/// From now on it asks, and reads these. At most most_names, but the last one alone counts.
struct reads_note {
    static constexpr std::uint16_t number = 16;
    std::vector<object_pins> these;
    bool is_last = true;
};

/// What is read at once of a file, and has a checksum of its own.
inline constexpr std::uint64_t file_piece = std::uint64_t{1} << 20;

// ---- of processes whose store has others beside it: objects of any of them ----------------------

/// Held by who asks, too, and brought to its node. At most most_names.
///   errors  not_found: nobody holds one of them any more; object_lost: the node that had it is
///           gone; exhausted: no room for a copy
struct far_claim_request {
    static constexpr std::uint16_t number = 30;
    std::vector<object_name> which;
};
struct far_claim_reply {
    static constexpr std::uint16_t number = 31;
    /// In the arena of this node, in the order of the question; not_in_arena: there was no room
    /// there, the process reads it into memory of its own.
    std::vector<std::uint64_t> at;
};
inline constexpr std::uint64_t not_in_arena = ~std::uint64_t{0};
/// Bytes of an object that the process holds, and for which there was no room here; chunk_bytes at
/// most.
///   errors  those of far_claim_request
struct far_read_request {
    static constexpr std::uint16_t number = 36;
    object_name which;
    std::uint64_t at = 0, bytes = 0;
};
struct far_read_reply {
    static constexpr std::uint16_t number = 37;
    byte_buffer bytes;
};
inline constexpr std::uint64_t chunk_bytes = std::uint64_t{1} << 20;
/// It has heard of what was given to it, wherever that is. At most most_names.
struct far_take_note {
    static constexpr std::uint16_t number = 32;
    std::vector<object_name> which;
    process_id from;
};
/// Held for another process, too. At most most_names.
///   errors  those of far_claim_request; object_lost, too: the store of that process and that of an
///           object have no link, or that and the one here have had another one since it was held
struct far_give_request {
    static constexpr std::uint16_t number = 33;
    std::vector<object_name> which;
    process_id to;
    std::uint64_t to_store = 0; ///< of that process; 0: not known
};
/// How often one object is not held any more.
struct far_let_go {
    std::uint64_t store = 0;
    object_number which;
    std::uint32_t times = 0, pins = 0; ///< pins: of the process's own node, on one host
};
/// At most most_names.
struct far_release_note {
    static constexpr std::uint16_t number = 34;
    std::vector<far_let_go> all;
};
/// Where the store of the program's driver is.
struct hub_note {
    static constexpr std::uint16_t number = 35;
    std::string door;
    bool is_for_hosts = false; ///< it listens at all addresses
};

/// From the store: with which others it has a link now. What they are about is in their reach.
struct reached_note {
    static constexpr std::uint16_t number = 38;
    std::vector<std::uint64_t> stores;
};

/// So many names one message has at most: longer ones would be overtaken.
inline constexpr std::size_t most_names = 1024;

using store_messages =
    net::message_table<create_request, create_reply, seal_request, give_request, done_reply,
                       claim_request, claim_reply, release_note, take_note, decline_note,
                       pin_request, pin_reply, fetch_request, fetch_reply, roomy_note, reads_note,
                       far_claim_request, far_claim_reply, far_read_request, far_read_reply,
                       far_take_note, far_give_request, far_release_note, hub_note, reached_note>;

} // namespace skein::objects
