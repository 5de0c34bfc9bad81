// SPDX-License-Identifier: Apache-2.0
#pragma once
// What is said of a node that is to be empty: by when, and what becomes of each lease there; see
// cluster/messages.hpp and docs/design/0045-drain.md.

#include <skein/core/config.hpp>
#include <skein/cluster/detail/lease_messages.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace skein::cluster {

inline constexpr std::int64_t no_drain_deadline =
    -1; ///< of a drain: what runs there may end by itself
/// Longer ones are cut to it: a year.
inline constexpr std::int64_t longest_drain_ms = std::int64_t{366} * 86'400'000;

/// What becomes of a lease on a node that drains.
enum class leave_word : std::uint8_t {
    none,  ///< nobody has said so yet
    moves, ///< what runs there goes on elsewhere
    ends,  ///< it is about to end, and is not started again for the drain's sake
    stays, ///< it does neither, and why
};

/// A driver says what becomes of a lease that was asked back; that one stays: keep_lease.
struct lease_leaves {
    static constexpr std::uint16_t number = 90;
    std::uint64_t lease = 0;
    bool moves = false; ///< else it ends
    std::string why;    ///< for people: "when the calls that run there have ended"
};

/// A node is about to be taken away: it drains itself, as long as this start of its agent lives.
struct node_leaves {
    static constexpr std::uint16_t number = 91;
    std::int64_t within_ms = no_drain_deadline;
    std::string why;
};

/// A lease on a node that drains, as people are told of it.
struct drained_lease {
    lease_name lease;
    std::string what;      ///< "worker-3", "rank 2", "entry process", "space server of s"
    std::string of, host;  ///< its driver, or the job whose entry process it is
    std::int64_t pid = 0;  ///< of that driver or entry process
    std::string job;       ///< out of which it came; "": none
    std::uint8_t word = 0; ///< leave_word
    std::string why;
};

} // namespace skein::cluster
