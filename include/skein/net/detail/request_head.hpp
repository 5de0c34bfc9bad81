// SPDX-License-Identifier: Apache-2.0
#pragma once
// The frames of the request layer and what is below it.
//
//   request   id = call   head, then the message       reply     id = call   the message
//   failure   id = call   an encoded skein::error      cancel    id = call
//   chunk     flags: first, last, dropped              first: kind(2) id(8) total(8), then bytes

#include <skein/core/bytes.hpp>
#include <skein/core/function.hpp>
#include <skein/core/task.hpp>
#include <skein/net/frame.hpp>

#include <cstddef>
#include <cstdint>
#include <string>

namespace skein::net::detail {

inline constexpr std::uint16_t request_kind = 0xfd01, reply_kind = 0xfd02, failure_kind = 0xfd03,
                               cancel_kind = 0xfd04, chunk_kind = 0xfd05;
inline constexpr std::uint16_t first_chunk = 1, last_chunk = 2, dropped_chunk = 4;
inline constexpr std::size_t chunk_head_bytes = 18;
inline constexpr std::size_t most_control_bytes = std::size_t{1} << 20;
inline constexpr std::size_t most_chunk_bytes = std::size_t{4} << 20;

/// What stands before the message in a request.
struct request_head {
    static constexpr std::size_t bytes = 44;
    std::uint16_t number = 0;
    std::uint16_t flags = 0;       ///< 1: no answer is wanted; 2: asked before with this key
    std::uint64_t deadline_us = 0; ///< from the sending on; 0: none
    std::uint64_t generation = 0;
    std::uint64_t client = 0, key = 0, done_below = 0; ///< key 0: none

    static constexpr std::uint16_t one_way = 1, repeat = 2;

    void encode(std::byte* to) const noexcept {
        store_le(to, number);
        store_le(to + 2, flags);
        store_le(to + 4, deadline_us);
        store_le(to + 12, generation);
        store_le(to + 20, client);
        store_le(to + 28, key);
        store_le(to + 36, done_below);
    }
    static request_head decode(const std::byte* from) noexcept {
        request_head h;
        h.number = load_le<std::uint16_t>(from);
        h.flags = load_le<std::uint16_t>(from + 2);
        h.deadline_us = load_le<std::uint64_t>(from + 4);
        h.generation = load_le<std::uint64_t>(from + 12);
        h.client = load_le<std::uint64_t>(from + 20);
        h.key = load_le<std::uint64_t>(from + 28);
        h.done_below = load_le<std::uint64_t>(from + 36);
        return h;
    }
};

/// A link or a connection.
class request_wire {
public:
    request_wire() = default;
    request_wire(const request_wire&) = delete;
    request_wire& operator=(const request_wire&) = delete;
    virtual ~request_wire() = default;
    virtual void send(std::uint16_t kind, std::uint16_t flags, std::uint64_t id, byte_span head,
                      byte_span body) = 0;
    virtual task<void> send_ready(std::size_t most_queued) = 0;
    virtual void set_handler(unique_function<void(const frame_view&)> handler) = 0;
    virtual void set_closed_handler(unique_function<void(const error*)> handler) = 0;
    virtual task<void> close() = 0;
    virtual void abort(error why) noexcept = 0;
    [[nodiscard]] virtual std::size_t queued_bytes() const noexcept = 0;
    [[nodiscard]] virtual const std::string& peer_name() const noexcept = 0;
    [[nodiscard]] virtual std::uint64_t peer_incarnation() const noexcept = 0;
};

} // namespace skein::net::detail
