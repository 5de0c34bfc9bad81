// SPDX-License-Identifier: Apache-2.0
#pragma once
// Turns of work that is done for others, so that however much of it there is, a loop has time for
// all else.
//
//     net::http_turns turns;
//     auto turn = turns.wait(lane);                   // of this client's key
//     co_await turn;
//     // one piece of work, some milliseconds at most
//
// At most one piece is done in each turn of the loop. Lanes take turns, and who waits in one is
// served in the order of coming: who has been served waits behind those that have not. When the
// pieces have taken a few milliseconds together, all else has as long before the next one.

#include <skein/core/config.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/task.hpp>
#include <skein/core/time.hpp>
#include <skein/core/timer_wheel.hpp>
#include <skein/core/wait.hpp>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace skein::net {

/// Belongs to the loop on which it is first waited for; outlives its waits.
class http_turns {
public:
    static constexpr std::size_t lanes = 3;

    /// budget   of work, after which all else has as long
    explicit http_turns(time_span budget = std::chrono::milliseconds(3));
    http_turns(const http_turns&) = delete;
    http_turns& operator=(const http_turns&) = delete;
    ~http_turns() = default;

    /// Returns when it is this one's turn; what follows at once is its piece of work.
    ///   errors  cancelled
    [[nodiscard]] task<void> wait(std::size_t lane);

    /// How many wait in that lane.
    [[nodiscard]] std::size_t waiting(std::size_t lane) const noexcept { return waiting_[lane]; }

private:
    struct end_of_turn : turn_hook {
        explicit end_of_turn(http_turns& t) noexcept;
        http_turns& of;
    };
    struct end_of_rest : timer_node {
        explicit end_of_rest(http_turns& t) noexcept;
        http_turns& of;
    };

    void begin() noexcept;
    void ended() noexcept;
    void next() noexcept;

    time_span budget_;
    std::array<wait_queue, lanes> queues_;
    std::array<std::size_t, lanes> waiting_{};
    std::size_t last_lane_ = 0;
    bool working_ = false; ///< a piece has its turn
    bool resting_ = false;
    time_point began_;
    duration used_{0};
    end_of_turn hook_{*this};
    end_of_rest rest_{*this};
};

} // namespace skein::net

#if SKEIN_HEADER_ONLY
#include <skein/net/detail/http_turns.ipp>
#endif
