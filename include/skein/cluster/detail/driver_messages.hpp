// SPDX-License-Identifier: Apache-2.0
#pragma once
// Between a driver and the head: leases, placement groups, namespaces; see cluster/messages.hpp.

#include <skein/core/config.hpp>
#include <skein/cluster/detail/drain_messages.hpp>
#include <skein/cluster/detail/lease_messages.hpp>
#include <skein/core/bytes.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace skein::cluster {

inline constexpr std::uint64_t unknown_node = UINT64_MAX; ///< of a lease whose worker came first

/// A lease of a driver, as its hello tells it.
struct known_lease {
    std::uint64_t number = 0;
    std::string demand;
    std::uint64_t node = 0; ///< the incarnation of its agent; 0: it waits; or unknown_node
    std::string label;      ///< these four: see want_lease
    bool own = false;
    std::string env, cwd;
};

/// Where a bundle of a placement group is.
struct placed_bundle {
    std::uint64_t node = 0; ///< the incarnation of its agent; 0: it has no place
    std::uint64_t gpus = 0; ///< bits of sched::gpu_set
};

/// A placement group of a driver, as its hello tells it.
struct known_group {
    std::uint64_t number = 0;
    std::uint8_t strategy = 0;         ///< sched::group_strategy
    std::vector<std::string> bundles;  ///< as sched::parse_resources() reads them
    std::vector<placed_bundle> placed; ///< of each, as the head said last; none: it waits
};

/// A driver calls actors of a namespace through its space server, a driver of this incarnation.
struct visited_space {
    std::string space;
    std::uint64_t space_server = 0;
};

inline constexpr std::uint64_t space_server_lease =
    0; ///< of its own process, among those of its workers

/// A driver says who it is and which leases it has or waits for; answered by driver_welcome.
struct driver_hello {
    static constexpr std::uint16_t number = 3;
    std::uint32_t version = cluster_version;
    std::string name; ///< of the job, for people: "./train"
    std::string host;
    std::int64_t pid = 0;
    std::uint32_t weight = 1; ///< of its fair share
    // What agents start, and where that finds the driver.
    std::string executable; ///< a path: an absolute one, or of the folder of its job
    std::string program;    ///< argv[0]
    std::string folder;     ///< working directory; as the executable
    std::string job;        ///< it belongs to what was submitted under this id; "": to nothing
    std::uint16_t port = 0; ///< on which it listens for workers
    std::string address;    ///< all of it, where the host is no secret; "": see driver_program
    std::vector<known_lease> leases;
    std::vector<known_group> groups;
    bool prints = false;     ///< it takes what its workers print; else that appears at their agent
    bool again = false;      ///< a head has welcomed it before
    std::string space;       ///< it is the space server of this namespace; "": it is a program
    std::uint64_t build = 0; ///< proc::build_id() of its executable
    std::vector<visited_space> visits;
    bool has_ranks = false; ///< and no workers: it listens for none
};

/// The head takes the driver in, and says how large the cluster is.
struct driver_welcome {
    static constexpr std::uint16_t number = 4;
    std::uint64_t cpus = 0; ///< whole ones, of all nodes
    std::uint32_t nodes = 0;
    std::string runs; ///< a folder that all nodes see, for the runs of trainings; "": none
    std::uint64_t lost_after_ms = 0; ///< see node_welcome
};

/// A driver asks for room for one more worker.
struct want_lease {
    static constexpr std::uint16_t number = 5;
    std::uint64_t lease = 0; ///< a number that this driver has not used
    std::string demand;
    /// Of the node: "zone=a", "node=n1"; in a placement group "@3", "@3/0"; empty: any.
    std::string label;
    /// Whether the lease is for tasks with one demand alone: the driver gives others of its leases
    /// back for it, where it is told.
    bool own = false;
    /// Of its worker's process, as sched::parse_task_environment() reads them; no folder: that of
    /// the driver.
    std::string env, cwd;
    rank_order rank{};
};

/// Takes back what was asked for, or ends what was granted.
struct return_lease {
    static constexpr std::uint16_t number = 6;
    std::uint64_t lease = 0;
    bool at_once = false; ///< its worker is to be killed, not asked
};

/// A lease has got its room, and its worker is being started.
struct lease_granted {
    static constexpr std::uint16_t number = 7;
    std::uint64_t lease = 0;
    std::uint64_t node = 0; ///< the incarnation of its agent
    std::string node_name;
    std::vector<std::string> labels; ///< of the node; "node=n1" is one
};

/// A lease waits for a node that could hold it: none that is there could.
struct lease_waits {
    static constexpr std::uint16_t number = 8;
    std::uint64_t lease = 0;
    std::string why;
    bool is_held_up = false; ///< one could: others have held it for long
};

/// A lease is gone: its worker has ended, or there can be none.
struct lease_ended {
    static constexpr std::uint16_t number = 9;
    std::uint64_t lease = 0;
    bool started = true; ///< its worker ran
    std::string how;
    std::uint64_t lines = 0; ///< these: see ended_lease
    bool is_lasting = false;
    std::int32_t code = -1;
    std::int32_t signal = 0;
    bool of_node = false;
    bool is_drained = false; ///< its process was ended because its node is to be empty
};

/// The head asks for it back: its node is drained, or others have had less than their share for
/// long. The driver sends no new work there and returns it when what runs has ended.
struct lease_recalled {
    static constexpr std::uint16_t number = 21;
    std::uint64_t lease = 0;
    std::string why;
    bool withdrawn = false; ///< it is not asked back any more
    /// Its node is to be empty after so long; no_drain_deadline: when what runs there has ended.
    std::int64_t within_ms = no_drain_deadline;
    /// Of a rank: why there is no room for all ranks of its group on other nodes; "": there is.
    std::string no_room;
};

/// A lease that was asked back is kept: its worker has actors.
struct keep_lease {
    static constexpr std::uint16_t number = 22;
    std::uint64_t lease = 0;
    std::string why; ///< for people
};

/// All that runs on a lease waits for calls that it has made, or no longer: its cpus are free
/// meanwhile.
struct lease_blocked {
    static constexpr std::uint16_t number = 23;
    std::uint64_t lease = 0;
    bool on = false;
};

/// A driver asks for a placement group: room for all its bundles, or none.
struct want_group {
    static constexpr std::uint16_t number = 24;
    std::uint64_t group = 0; ///< a number that this driver has not used
    std::uint8_t strategy = 0;
    std::vector<std::string> bundles;
};

/// A driver needs it no more, and has returned the leases in it.
struct drop_group {
    static constexpr std::uint16_t number = 25;
    std::uint64_t group = 0;
};

/// All bundles have places.
struct group_placed {
    static constexpr std::uint16_t number = 26;
    std::uint64_t group = 0;
    std::vector<placed_bundle> bundles;
};

/// A placement group waits for nodes that could hold it, or for other places in the stead of those
/// that have gone.
struct group_waits {
    static constexpr std::uint16_t number = 27;
    std::uint64_t group = 0;
    bool impossible = false; ///< no nodes that are there could hold it
    std::string why;
};

/// A placement group can never be, and is forgotten.
struct group_refused {
    static constexpr std::uint16_t number = 28;
    std::uint64_t group = 0;
    std::string why;
};

/// A driver asks for the space server of a namespace, which is started if there is none, from the
/// driver's executable.
struct enter_space {
    static constexpr std::uint16_t number = 30;
    std::string space;
    std::uint64_t space_server = 0; ///< this one or none; 0: whichever there is
};

/// Where the space server listens; as in driver_program.
struct space_entered {
    static constexpr std::uint16_t number = 31;
    std::uint64_t space_server = 0; ///< its incarnation
    std::string who;                ///< "app (pid 7 at host)"
    std::string host;
    std::uint16_t port = 0;
    std::string address;
    byte_buffer sealed; ///< its secret, for the key of who asks
};

/// A space server that the driver visits has ended.
struct space_lost {
    static constexpr std::uint16_t number = 32;
    std::string space;
    std::uint64_t space_server = 0;
    std::string how;
};

/// Nodes have come or gone.
struct cluster_changed {
    static constexpr std::uint16_t number = 10;
    std::uint64_t cpus = 0;
    std::uint32_t nodes = 0;
};

} // namespace skein::cluster
