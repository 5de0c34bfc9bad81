// SPDX-License-Identifier: Apache-2.0
#pragma once
// The table of time constants and default limits. net::limits, net::keep_alive, net::reconnect_policy
// and the options of the layers above take their defaults from it.
//
// The values are for hosts in one network (lan); wan() gives the same table times five.

#include <skein/core/config.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace skein {

struct time_constants {
    using ms = std::chrono::milliseconds;

    ms group_heartbeat{100};  ///< inside a training group
    ms agent_heartbeat{500};  ///< between head and agents, and idle connections
    ms suspect_after{1000};   ///< silence after which a peer is suspected
    ms dead_after{3000};      ///< silence after which a peer is dead
    ms stalled_after{10'000}; ///< with no byte taken, after which a peer we do not hear is given up
    ms connect_timeout{5000}; ///< one attempt
    ms handshake_timeout{5000};
    ms close_timeout{2000}; ///< for what is queued and the peer's goodbye
    ms reconnect_first{50}; ///< delay before the second attempt; doubles up to reconnect_most
    ms reconnect_most{2000};
    ms accept_pause{100};    ///< after a failed accept
    ms accept_grace{20};     ///< no stream is dropped for another one before
    ms refusal_line{10'000}; ///< at most one log line per kind of refused stream in this time
    ms shutdown_grace{2000}; ///< from the request to stop until the kill
    ms rendezvous_timeout{60000};
    ms collective_timeout{30000};

    /// All values times `factor`.
    [[nodiscard]] constexpr time_constants times(int factor) const noexcept {
        time_constants t = *this;
        for (ms* value :
             {&t.group_heartbeat, &t.agent_heartbeat, &t.suspect_after, &t.dead_after,
              &t.stalled_after, &t.connect_timeout, &t.handshake_timeout, &t.close_timeout,
              &t.reconnect_first, &t.reconnect_most, &t.accept_pause, &t.accept_grace,
              &t.refusal_line, &t.shutdown_grace, &t.rendezvous_timeout, &t.collective_timeout})
            *value *= factor;
        return t;
    }
    [[nodiscard]] static constexpr time_constants lan() noexcept { return {}; }
    [[nodiscard]] static constexpr time_constants wan() noexcept { return lan().times(5); }
};

/// Exit codes of every program built with skein.
namespace exit_code {
inline constexpr int done = 0, failed = 1, usage = 2, deadline = 124, interrupted = 130,
                     terminated = 143, job_stopped = 138;
} // namespace exit_code

/// Default size limits; each has an option where it is used.
namespace limit {
inline constexpr std::size_t frame_bytes = std::size_t{1} << 30;   ///< one frame's body
inline constexpr std::size_t queue_bytes = std::size_t{64} << 20;  ///< a connection's, each way
inline constexpr std::size_t inline_bytes = std::size_t{64} << 10; ///< values kept inside messages
inline constexpr std::size_t gather_bytes = std::size_t{4} << 10;  ///< from here on sent uncopied
} // namespace limit

} // namespace skein
