// SPDX-License-Identifier: Apache-2.0
#pragma once
// What processes and the store of their node say to each other, over a link of each process with it.
// They come in order; create alone may wait.

#include <skein/net/message.hpp>
#include <skein/objects/object_name.hpp>
#include <skein/objects/store_book.hpp>

#include <cstddef>
#include <cstdint>
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
/// How often one object is not held any more.
struct let_go {
    object_number which;
    std::uint32_t times = 0, unused = 0;
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

/// So many names one message has at most: longer ones would be overtaken.
inline constexpr std::size_t most_names = 2048;

using store_messages =
    net::message_table<create_request, create_reply, seal_request, give_request, done_reply,
                       claim_request, claim_reply, release_note, take_note, decline_note>;

} // namespace skein::objects
