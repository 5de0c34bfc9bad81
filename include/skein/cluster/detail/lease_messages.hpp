// SPDX-License-Identifier: Apache-2.0
#pragma once
// What several messages of a cluster speak of: their version, and leases by name.

#include <skein/core/config.hpp>

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

namespace skein::cluster {

/// The version of these messages; head and peers must have the same.
inline constexpr std::uint32_t cluster_version = 14;

namespace detail {
inline constexpr std::uint64_t most_lost_after_ms = 7 * 86'400'000; ///< see node_welcome
}

/// In the environment of what comes from a job: the folder for runs of trainings.
inline constexpr const char* runs_variable = "SKEIN_RUNS_DIR";

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
    std::int64_t pid = 0;   ///< of its process, once it runs
};

/// What a driver has started in place of a worker: a rank of its training.
struct rank_order {
    std::vector<std::string> place; ///< "NAME=value", for it alone; none: it is no rank
    std::vector<std::string> argv;
    std::vector<std::string> env;  ///< "NAME=value"
    std::uint16_t port = 0;        ///< of its group's server, on the driver's host
    std::uint32_t attempt = 0;     ///< of that group, for its secret
    std::uint16_t threads = 0;     ///< of its process; 0: as many as its lease has cpus
    std::uint32_t stop_millis = 0; ///< from SIGTERM to the kill

    [[nodiscard]] bool is_there() const noexcept { return !place.empty(); }
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
    bool of_node = false;    ///< it did not start, and would on another node
};

} // namespace skein::cluster
