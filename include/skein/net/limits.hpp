// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a peer may ask of us: every size and every wait on a connection has a bound here.
//
// Memory per connection is at most about max_frame + max_send_queue + max_receive_queue.
// Nothing is allocated for a peer before it has proven that it knows the token.

#include <skein/core/constants.hpp>
#include <skein/core/time.hpp>

#include <cstddef>
#include <cstdint>

namespace skein::net {

/// Bounds of one connection; trivially destructible, so it may stand in an awaited expression.
struct limits {
    std::size_t max_frame = limit::frame_bytes;         ///< body bytes of one frame
    std::size_t max_send_queue = limit::queue_bytes;    ///< send_ready() waits above this
    std::size_t max_receive_queue = limit::queue_bytes; ///< reading pauses above this
    std::size_t max_identity = std::size_t{256} << 10;  ///< encoded identity of the peer
    time_span handshake_deadline = time_constants::lan().handshake_timeout;
    time_span close_deadline = time_constants::lan().close_timeout; ///< flush at close, then cut
};

/// When a silent peer is asked, suspected and given up.
enum class keep_alive_mode : std::uint8_t {
    automatic, ///< on for TCP and the simulated network, off for Unix sockets (the kernel tells)
    on,
    off,
};
/// How long a peer may be silent before it is asked, suspected and given up.
struct keep_alive {
    keep_alive_mode mode = keep_alive_mode::automatic;
    time_span ping_after = time_constants::lan().agent_heartbeat; ///< of silence
    time_span suspect_after = time_constants::lan().suspect_after;
    time_span dead_after = time_constants::lan().dead_after;
    /// While we read nothing (paused, or the receive queue is full) a peer is judged by what it
    /// takes: given up when bytes wait for it and it has taken none for so long.
    time_span stalled_after = time_constants::lan().stalled_after;
    /// Of a peer that may be silent because it computes: given up when its host has confirmed
    /// nothing of what we have sent for so long, see stream::unconfirmed(). Looked at once in
    /// ping_after.
    time_span unconfirmed_after = duration::max();
};

} // namespace skein::net
