// SPDX-License-Identifier: Apache-2.0
#pragma once
// A view: who the ranks of an elastic job are at one time. The views of a job form one chain,
// numbered by their generation; a view_register holds the newest.

#include <cstdint>
#include <string>
#include <vector>

namespace skein::spmd {

/// One rank's process. Its id is never used again within the job.
struct view_member {
    std::uint64_t id = 0;
    std::string host;
    std::uint64_t keeper = 0; ///< the id of the supervisor that started it
    std::int64_t pid = 0;
    friend bool operator==(const view_member&, const view_member&) = default;
};

/// Members are in the order of their ranks: those that stay keep their order and come first, those
/// that join stand behind them.
struct view {
    std::uint64_t generation = 0; ///< from 1; 0: there was none yet
    std::vector<view_member> members;
    std::string group;          ///< the address of this view's group server
    std::uint64_t author = 0;   ///< the id of the coordinator that made it
    std::uint64_t failures = 0; ///< of the job so far that count against its budget of restarts
    std::string why;            ///< what changed: "worker 2 (pid 7 at a) was killed by signal 9"
    bool is_over = false;       ///< no view follows: the job has ended, for this reason
    friend bool operator==(const view&, const view&) = default;
};

} // namespace skein::spmd
