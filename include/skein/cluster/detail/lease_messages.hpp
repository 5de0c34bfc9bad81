// SPDX-License-Identifier: Apache-2.0
#pragma once
// What several messages of a cluster speak of: their version, and leases by name.

#include <skein/core/config.hpp>

#include <compare>
#include <cstdint>
#include <string>

namespace skein::cluster {

/// The version of these messages; head and peers must have the same.
inline constexpr std::uint32_t cluster_version = 10;

/// Which lease: of which driver's process, and the how manieth there.
struct lease_name {
    std::uint64_t driver = 0, number = 0;
    friend auto operator<=>(const lease_name&, const lease_name&) = default;
};

/// A lease that a node holds: its worker runs, or loads.
struct held_lease {
    lease_name lease;
    std::string demand;     ///< as sched::parse_resources() reads it
    std::uint64_t gpus = 0; ///< bits of sched::gpu_set
    std::string space;      ///< it is the space server of this namespace
    std::string job;        ///< it is the entry process of this job
};

/// How a worker ended.
struct ended_lease {
    lease_name lease;
    bool started = true;
    std::string how;         ///< "killed by signal 9 (SIGKILL)"
    std::uint64_t lines = 0; ///< that it has printed, and its agent has read
    bool is_lasting = false; ///< it did not start, and would not with the same folder
    std::int32_t code = -1;  ///< that it has exited with; -1: it has not
    std::int32_t signal = 0; ///< that has ended it
    bool was_asked = false;  ///< to end, or its agent was, before it started
};

} // namespace skein::cluster
