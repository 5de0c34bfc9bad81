// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a coordinator keeps of each worker and of each view's group; comes after
// spmd/elastic_coordinator.hpp.

#include <skein/core/backoff.hpp>
#include <skein/core/error.hpp>
#include <skein/core/event.hpp>
#include <skein/core/task.hpp>
#include <skein/core/time.hpp>
#include <skein/spmd/detail/rank_ends.hpp>
#include <skein/spmd/elastic_coordinator.hpp>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace skein::spmd {

namespace detail {

/// view::why of the last view of a job that has ended well.
inline constexpr const char* done_in_order = "the training is done";

/// The same where no worker has asked for a world.
inline constexpr const char* done_alone =
    "all workers have ended with 0, and none has asked for a world: the program has no "
    "Trainer<Elastic<...>>, each was a run of its own";

/// What a rank throws because another one is lost.
[[nodiscard]] constexpr bool is_echo(errc code) noexcept {
    return code == errc::peer_lost || code == errc::aborted || code == errc::cancelled ||
           code == errc::closed || code == errc::reset;
}

/// An end that would only come again, or no such program.
[[nodiscard]] inline bool is_lasting_end(const worker_end& how) noexcept {
    return is_lasting_end(how.code, how.signal) ||
           (how.not_started && is_lasting(how.not_started->code()));
}

} // namespace detail

enum class elastic_coordinator::stage : std::uint8_t {
    starting, ///< its process may not be there yet
    ready,    ///< it has asked for its first world
    member,   ///< of the newest view
    leaving,  ///< was told that no view has it any more
};

struct elastic_coordinator::worker {
    view_member self;
    elastic_keeper* keeper = nullptr;
    stage is = stage::starting;
    int rank = -1; ///< in the newest view that had it
    std::uint64_t first_view = 0;
    std::optional<world_end> asked; ///< for the world after the newest view's
    bool has_state = false; ///< for certain; one that was in broken worlds alone may have some
    bool leaves = false, is_let_go = false; ///< that is why
    std::string why;                        ///< it leaves
    bool told_change = false, was_named_slow = false;
    int told_stop = 0;
    time_point started_at{}, ready_at{}, until = time_point::max();
    bool killed_by_us = false, was_late = false;
    bool has_ended = false, judged = false;
    bool left = false;         ///< its group in order
    std::uint64_t done_in = 0; ///< the view in which its training was done, as it said
    time_point ended_at{};
    worker_end end;
    std::optional<error> failed; ///< as it said
    std::vector<setting> settings;
    bool is_refused = false;
    bool is_alone = false; ///< it has ended well, and has asked for no world
    /// One that is placed later.
    struct {
        bool waits = false;   ///< its host is not known yet
        bool is_said = false; ///< to people
        /// It is wanted for another: the worker leaves as soon as the others can do without it.
        bool is_asked_back = false, is_told_to_stay = false;
        bool is_why = false; ///< it leaves, and has not said so itself
        std::string why;
    } place;
};

struct elastic_coordinator::view_group {
    std::uint64_t generation = 0;
    net::token secret;
    std::unique_ptr<group_server> server;
    std::optional<group_outcome> outcome;
    bool judged = false;
};

} // namespace skein::spmd
