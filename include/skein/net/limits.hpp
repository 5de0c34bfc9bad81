// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a peer may ask of us: every size and every wait on a connection has a bound here.
//
// Memory per connection is at most about max_frame + max_send_queue + max_receive_queue.
// Nothing is allocated for a peer before it has proven that it knows the token.

#include <skein/core/time.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace skein::net {

/// Bounds of one connection; trivially destructible, so it may stand in an awaited expression.
struct limits {
    std::size_t max_frame = std::size_t{1} << 30;          ///< body bytes of one frame
    std::size_t max_send_queue = std::size_t{64} << 20;    ///< send_ready() waits above this
    std::size_t max_receive_queue = std::size_t{64} << 20; ///< reading pauses above this
    std::size_t max_identity = std::size_t{256} << 10;     ///< encoded identity of the peer
    duration handshake_deadline = std::chrono::seconds(5);
    duration close_deadline = std::chrono::seconds(2); ///< flush at close, then cut
};

/// When a silent peer is asked, suspected and given up.
enum class keep_alive_mode : std::uint8_t {
    automatic, ///< on for TCP and the simulated network, off for Unix sockets (the kernel tells)
    on,
    off,
};
struct keep_alive {
    keep_alive_mode mode = keep_alive_mode::automatic;
    duration ping_after = std::chrono::milliseconds(500); ///< of silence
    duration suspect_after = std::chrono::seconds(1);
    duration dead_after = std::chrono::seconds(3);
};

} // namespace skein::net
