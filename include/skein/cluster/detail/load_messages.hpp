// SPDX-License-Identifier: Apache-2.0
#pragma once
// How busy a node is, as its agent tells the head; see cluster/messages.hpp.

#include <skein/core/config.hpp>
#include <skein/proc/host_load.hpp>

#include <cstdint>

namespace skein::cluster {

/// Once a second. One that is lost with a link is lost: the next one says how it is then.
struct node_load {
    static constexpr std::uint16_t number = 70;
    proc::host_load load;
};

} // namespace skein::cluster
