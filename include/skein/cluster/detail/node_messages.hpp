// SPDX-License-Identifier: Apache-2.0
#pragma once
// Between a node's agent and the head. Both hellos may come again; see cluster/messages.hpp.

#include <skein/core/config.hpp>
#include <skein/cluster/detail/drain_messages.hpp>
#include <skein/cluster/detail/lease_messages.hpp>
#include <skein/cluster/detail/start_order.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace skein::cluster {

/// A node says who it is and what it holds; answered by node_welcome.
struct node_hello {
    static constexpr std::uint16_t number = 1;
    std::uint32_t version = cluster_version;
    std::string name; ///< "" : that of the host
    std::string host;
    std::int64_t pid = 0;
    std::string resources; ///< "cpu=8,memory=16GiB,ssd=1"
    std::vector<std::string> labels;
    std::vector<held_lease> holds;
    std::vector<ended_lease> ended; ///< since the last link
    bool draining = false;          ///< see node_drains
    bool again = false;             ///< a head has welcomed it before
    std::uint64_t alone_ms = 0;     ///< without a head for so long it ends what it runs
    std::int64_t drain_left_ms = no_drain_deadline; ///< these: see node_drains
    bool drain_force = false;
    std::optional<node_leaves> leaves; ///< it is about to be taken away
};

/// The head takes the node in.
struct node_welcome {
    static constexpr std::uint16_t number = 2;
    std::string name;             ///< this node's, unique in the cluster
    std::vector<lease_name> stop; ///< nobody knows these leases any more
    /// A node that the head has not heard for so long is given up: without a head for so long, or
    /// as long as it would have waited anyway, it ends what it runs.
    std::uint64_t lost_after_ms = 0;
};

/// An agent is to end a worker; the answer is worker_ended.
struct stop_worker_order {
    static constexpr std::uint16_t number = 12;
    lease_name lease;
    bool at_once = false; ///< it is killed
};

/// A worker has ended, or did not start.
struct worker_ended {
    static constexpr std::uint16_t number = 13;
    ended_lease what;
};

/// The node has no place in the cluster any more: its agent ends.
struct leave_cluster {
    static constexpr std::uint16_t number = 14;
    std::string why;
};

/// The node is drained, or not any more. Its agent only remembers it, for a head that is started
/// again.
struct node_drains {
    static constexpr std::uint16_t number = 29;
    bool on = true;
    std::int64_t within_ms = no_drain_deadline; ///< it is to be empty after so long
    bool force = false;                         ///< then what is left there is ended
};

} // namespace skein::cluster
