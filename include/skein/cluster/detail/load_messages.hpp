// SPDX-License-Identifier: Apache-2.0
#pragma once
// How busy a node is, and what a driver calls, as they tell the head; see cluster/messages.hpp.

#include <skein/core/config.hpp>
#include <skein/core/metric_registry.hpp>
#include <skein/proc/host_load.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace skein::cluster {

/// Once a second. One that is lost with a link is lost: the next one says how it is then.
struct node_load {
    static constexpr std::uint16_t number = 70;
    proc::host_load load;
    std::vector<metric_family> numbers; ///< of the agent's process; at most most_told_series
};

/// Of one message.
inline constexpr std::size_t most_told_series = 256;

/// What has become of a driver's calls, at most once a second, and before it says goodbye.
struct driver_calls {
    static constexpr std::uint16_t number = 71;
    std::uint64_t submitted = 0, done = 0, failed = 0; ///< failed ones are done, too
};

} // namespace skein::cluster
