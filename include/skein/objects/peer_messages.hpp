// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the stores of a program's nodes say to each other: over a link of each two who holds what, and
// over connections of their own the bytes.
//
//     store_place, in identity::extra    who it is, and where it listens
//     hold, take_for, let_go             a store holds an object of the other one, for its processes
//     give_for                           ... and has its home hold it for a process of any node
//     declined, ended                    what becomes of gifts that nobody comes for
//
// Over a connection for bytes: frames of chunk_kind, whose id is the chunk's number.

#include <skein/net/message.hpp>
#include <skein/objects/object_name.hpp>
#include <skein/objects/store_messages.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace skein::objects {

/// Which store, and where others reach it.
struct store_place {
    std::uint64_t store = 0;
    std::string node;  ///< for people
    std::string door;  ///< for links; tcp:*:port: at the host from which it has come
    std::string bytes; ///< the same, for connections that carry bytes
};

/// From the driver's store: who else there is.
struct stores_note {
    static constexpr std::uint16_t number = 50;
    std::vector<store_place> all;
};
/// Objects that the asked store has, from now on held for the store that asks.
struct hold_request {
    static constexpr std::uint16_t number = 51;
    std::vector<object_number> which;
};
struct hold_reply {
    static constexpr std::uint16_t number = 52;
    std::vector<std::uint64_t> bytes; ///< 0: it is gone
};
/// A process has heard of gifts: they are held for its store now.
struct take_for_note {
    static constexpr std::uint16_t number = 53;
    std::vector<object_number> which;
    process_id by, from;
};
struct let_go_note {
    static constexpr std::uint16_t number = 54;
    std::vector<let_go> all;
};
/// Objects that the store which asks holds, from a process of its own to any other.
struct give_for_request {
    static constexpr std::uint16_t number = 55;
    std::vector<object_number> which;
    process_id by, to;
    std::uint64_t to_store = 0; ///< of `to`; 0: not known
};
/// These gifts are none after all: their process will not hear of them.
struct give_back_note {
    static constexpr std::uint16_t number = 58;
    std::vector<object_number> which;
    process_id by, to;
};
/// `by` hears of no more gifts of `from`.
struct declined_note {
    static constexpr std::uint16_t number = 56;
    process_id by, from;
};
/// The oldest take_for_note that was not confirmed has been heard.
struct taken_note {
    static constexpr std::uint16_t number = 59;
};
/// From the driver's store: it has lost that one, which is to be dialled when it is told of again.
struct gone_note {
    static constexpr std::uint16_t number = 60;
    std::uint64_t store = 0;
};
/// Its driver says so.
struct ended_note {
    static constexpr std::uint16_t number = 57;
    process_id process;
};

using peer_messages = net::message_table<stores_note, hold_request, hold_reply, take_for_note,
                                         let_go_note, give_for_request, give_back_note, taken_note,
                                         gone_note, declined_note, ended_note, done_reply>;

/// Who asks for bytes, in identity::extra.
struct chunk_hello {
    std::uint64_t store = 0;
};
/// Frames of a connection that carries bytes.
enum class chunk_kind : std::uint16_t {
    ask = 1,   ///< body: chunk_ask
    piece = 2, ///< body: the bytes
    none = 3,  ///< body: why there are none, as text
};
/// Bytes of an object.
struct chunk_ask {
    object_number which;
    std::uint64_t at = 0, bytes = 0; ///< within the object
};

} // namespace skein::objects
