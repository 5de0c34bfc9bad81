// SPDX-License-Identifier: Apache-2.0
#pragma once
// What head, agents, drivers and tools of a cluster say to each other, over net::requests.
//
// A lease is room on a node for one worker of one driver: the driver asks the head for it, the head has the
// node's agent start the worker, and the worker connects to the driver. It is named by the driver's incarnation
// and the driver's count, so that its name means the same to a head that was started again.
//
//     node -> head    node_hello        says who it is and which leases it holds; answered by node_welcome
//                     worker_ended      a worker has ended, or did not start
//     head -> node    start_worker_order, stop_worker_order, leave_cluster, node_drains
//     driver -> head  driver_hello      the same for a driver, with all leases it has or waits for
//                     want_lease, return_lease, keep_lease, lease_rests, want_group, drop_group
//     head -> driver  lease_granted, lease_waits, lease_recalled, lease_ended, cluster_changed,
//                     group_placed, group_waits, group_refused, space_lost
//     driver -> head  enter_space       answered by space_entered when the namespace has a keeper
//     tool -> head    ask_status, ask_drain, ask_stop, ask_stop_space
//
// What workers print goes the same way, if its driver wants it, as fast as that prints: an agent sends one node_output per
// take_output, and the head asks for the next when the driver has said output_printed.
//
//     node -> head    output_waits, node_output
//     head -> node    take_output
//     head -> driver  worker_output
//     driver -> head  output_printed
//
// Both hellos may come again after a lost link, or to a head that knows nothing: its state is what they say.

#include <skein/core/config.hpp>
#include <skein/net/requests.hpp>
#include <skein/rt/output.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace skein::cluster {

/// The version of these messages; head and peers must have the same.
inline constexpr std::uint32_t cluster_version = 8;

/// Which lease: of which driver's process, and the how manieth there.
struct lease_name {
    std::uint64_t driver = 0, number = 0;
    friend auto operator<=>(const lease_name&, const lease_name&) = default;
};

/// A lease that a node holds: its worker runs, or loads.
struct held_lease {
    lease_name lease;
    std::string demand;     ///< as rt::parse_resources() reads it
    std::uint64_t gpus = 0; ///< bits of rt::gpu_set
    std::string space;      ///< it is the keeper of this namespace
};

/// How a worker ended.
struct ended_lease {
    lease_name lease;
    bool started = true;
    std::string how;         ///< "killed by signal 9 (SIGKILL)"
    std::uint64_t lines = 0; ///< that it has printed, and its agent has read
    bool is_lasting = false; ///< it did not start, and would not with the same folder
};

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
};
/// The head takes the node in.
struct node_welcome {
    static constexpr std::uint16_t number = 2;
    std::string name;             ///< this node's, unique in the cluster
    std::vector<lease_name> stop; ///< nobody knows these leases any more
};

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
    std::uint64_t gpus = 0; ///< bits of rt::gpu_set
};
/// A placement group of a driver, as its hello tells it.
struct known_group {
    std::uint64_t number = 0;
    std::uint8_t strategy = 0;         ///< rt::group_strategy
    std::vector<std::string> bundles;  ///< as rt::parse_resources() reads them
    std::vector<placed_bundle> placed; ///< of each, as the head said last; none: it waits
};

/// A driver calls actors of a namespace through its keeper, a driver of this incarnation.
struct visited_space {
    std::string space;
    std::uint64_t keeper = 0;
};

inline constexpr std::uint64_t keeper_lease = 0; ///< of its own process, among those of its workers

/// A driver says who it is and which leases it has or waits for; answered by driver_welcome.
struct driver_hello {
    static constexpr std::uint16_t number = 3;
    std::uint32_t version = cluster_version;
    std::string name; ///< of the job, for people: "./train"
    std::string host;
    std::int64_t pid = 0;
    std::uint32_t weight = 1; ///< of its fair share
    // What agents start, and where that finds the driver.
    std::string executable; ///< an absolute path
    std::string program;    ///< argv[0]
    std::string folder;     ///< working directory
    std::uint16_t port = 0; ///< on which it listens for workers
    std::string address;    ///< all of it, where the host is no secret; "": see start_worker_order
    std::vector<known_lease> leases;
    std::vector<known_group> groups;
    bool prints = false;     ///< it takes what its workers print; else that appears at their agent
    bool again = false;      ///< a head has welcomed it before
    std::string space;       ///< it is the keeper of this namespace; "": it is a program
    std::uint64_t build = 0; ///< rt::build_id() of its executable
    std::vector<visited_space> visits;
};
/// The head takes the driver in, and says how large the cluster is.
struct driver_welcome {
    static constexpr std::uint16_t number = 4;
    std::uint64_t cpus = 0; ///< whole ones, of all nodes
    std::uint32_t nodes = 0;
};

/// A driver asks for room for one more worker.
struct want_lease {
    static constexpr std::uint16_t number = 5;
    std::uint64_t lease = 0; ///< a number that this driver has not used
    std::string demand;
    /// Of the node: "zone=a", "node=n1"; in a placement group "@3", "@3/0"; empty: any.
    std::string label;
    /// For tasks with one demand alone: the driver gives others of its leases back for it, where it is told.
    bool own = false;
    /// Of its worker's process, as rt::parse_task_environment() reads them; no folder: that of the driver.
    std::string env, cwd;
};
/// Takes back what was asked for, or ends what was granted.
struct return_lease {
    static constexpr std::uint16_t number = 6;
    std::uint64_t lease = 0;
    bool at_once = false; ///< its worker is to be killed, not asked
};
/// There is room, and the worker is being started.
struct lease_granted {
    static constexpr std::uint16_t number = 7;
    std::uint64_t lease = 0;
    std::uint64_t node = 0; ///< the incarnation of its agent
    std::string node_name;
    std::vector<std::string> labels; ///< of the node; "node=n1" is one
};
/// It waits for a node that could hold it: none that is there could.
struct lease_waits {
    static constexpr std::uint16_t number = 8;
    std::uint64_t lease = 0;
    std::string why;
};
/// A lease is gone: its worker has ended, or there can be none.
struct lease_ended {
    static constexpr std::uint16_t number = 9;
    std::uint64_t lease = 0;
    bool started = true; ///< its worker ran
    std::string how;
    std::uint64_t lines = 0; ///< these two: see ended_lease
    bool is_lasting = false;
};
/// The head asks for it back: the driver sends no new work there, and returns it when what runs has ended.
struct lease_recalled {
    static constexpr std::uint16_t number = 21;
    std::uint64_t lease = 0;
    std::string why;
    bool withdrawn = false; ///< it is not asked back any more
};
/// A lease that was asked back is kept: its worker has actors.
struct keep_lease {
    static constexpr std::uint16_t number = 22;
    std::uint64_t lease = 0;
};
/// All that runs on a lease waits for calls that it has made, or no longer: its cpus are free meanwhile.
struct lease_rests {
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
/// It waits: for nodes that could hold it, or some of its places have gone and it gets others.
struct group_waits {
    static constexpr std::uint16_t number = 27;
    std::uint64_t group = 0;
    bool impossible = false; ///< no nodes that are there could hold it
    std::string why;
};
/// There can be no such group: it is forgotten.
struct group_refused {
    static constexpr std::uint16_t number = 28;
    std::uint64_t group = 0;
    std::string why;
};
/// A driver asks for the keeper of a namespace, which is started if there is none, from the driver's executable.
struct enter_space {
    static constexpr std::uint16_t number = 30;
    std::string space;
    std::uint64_t keeper = 0; ///< this one or none; 0: whichever there is
};
/// Where the keeper listens; as in start_worker_order.
struct space_entered {
    static constexpr std::uint16_t number = 31;
    std::uint64_t keeper = 0; ///< its incarnation
    std::string who;          ///< "app (pid 7 at host)"
    std::string host;
    std::uint16_t port = 0;
    std::string address;
};
/// A keeper that the driver visits has ended.
struct space_lost {
    static constexpr std::uint16_t number = 32;
    std::string space;
    std::uint64_t keeper = 0;
    std::string how;
};
/// Nodes have come or gone.
struct cluster_changed {
    static constexpr std::uint16_t number = 10;
    std::uint64_t cpus = 0;
    std::uint32_t nodes = 0;
};

/// An agent is to start a worker.
struct start_worker_order {
    static constexpr std::uint16_t number = 11;
    lease_name lease;
    std::string demand;
    std::uint64_t gpus = 0;
    std::string executable, program, folder;
    std::string name; ///< "worker-3"
    /// Where its driver listens. Empty host: it runs on the head's host, which each node knows by another
    /// address, so that the agent takes the one under which it has reached the head.
    std::string driver_host, driver_address; ///< the address: instead of host and port
    std::uint16_t driver_port = 0;
    bool prints = false; ///< see driver_hello
    std::string env;     ///< see want_lease; its folder is `folder`
    std::string space;   ///< not a worker: the keeper of this namespace
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

/// The node is drained, or not any more. Its agent only remembers it, for a head that is started again.
struct node_drains {
    static constexpr std::uint16_t number = 29;
    bool on = true;
};

/// Lines that one worker has printed.
struct printed_lines {
    std::uint64_t lease = 0;
    std::uint64_t first = 0; ///< the number of the first; what is missing before was left out
    std::vector<rt::output_line> lines;
};
/// Bytes of text in one of these, at most; with all else it is a small message, which others do not overtake.
inline constexpr std::size_t most_output_bytes = 56'000;

/// A node has lines of a driver's workers.
struct output_waits {
    static constexpr std::uint16_t number = 40;
    std::uint64_t driver = 0;
};
/// It may send some of them.
struct take_output {
    static constexpr std::uint16_t number = 41;
    std::uint64_t driver = 0;
};
/// The lines; none: there are no more.
struct node_output {
    static constexpr std::uint16_t number = 42;
    std::uint64_t driver = 0;
    std::vector<printed_lines> from;
};
/// The same for their driver.
struct worker_output {
    static constexpr std::uint16_t number = 43;
    std::uint64_t node = 0; ///< the incarnation of its agent
    std::string node_name;
    std::vector<printed_lines> from;
};
/// The driver has printed the last ones of that node.
struct output_printed {
    static constexpr std::uint16_t number = 44;
    std::uint64_t node = 0;
};

/// A node, in cluster_status.
struct node_status {
    std::string name, host, resources, used;
    std::int64_t pid = 0;
    std::uint32_t workers = 0;
    bool draining = false, suspect = false;
    std::vector<std::string> labels;
};
/// A driver, in cluster_status.
struct job_status {
    std::string name, host;
    std::int64_t pid = 0;
    std::uint32_t workers = 0, waiting = 0;
    std::string why; ///< why the first of those that wait does
    bool connected = true;
    std::string space; ///< it is the keeper of this namespace
};
/// A node that was there, in cluster_status.
struct missing_node {
    std::string name, host, resources;
    std::vector<std::string> labels;
    bool draining = false;
    bool left = false;      ///< in order; it is remembered because it is drained
    std::int64_t since = 0; ///< seconds since 1970
};
/// How a driver's time in the cluster ended.
enum class job_end : std::uint8_t {
    none,
    left,    ///< it said goodbye
    lost,    ///< its link broke, and it did not come back
    stopped, ///< the cluster was stopped
};
/// A driver that was there, in cluster_status.
struct past_job {
    std::string name, host;
    std::int64_t pid = 0, started = 0, ended = 0; ///< the last two: seconds since 1970
    std::uint8_t how = 0;                         ///< job_end
    std::string space;                            ///< it was the keeper of this namespace
};
/// Asks for cluster_status.
struct ask_status {
    static constexpr std::uint16_t number = 15;
    std::uint32_t version = cluster_version;
    bool past = false; ///< with the drivers that were there
};
/// What there is.
struct cluster_status {
    static constexpr std::uint16_t number = 16;
    std::string address, host;
    std::int64_t pid = 0, up_ms = 0;
    std::vector<node_status> nodes;
    std::vector<job_status> jobs;
    std::vector<missing_node> missing; ///< that were there, and are not
    std::vector<past_job> past;        ///< the last one first; if asked for
    std::string state;                 ///< the folder of the head's log; "": it keeps none
    std::string trouble;               ///< why changes are not durable now
    std::uint64_t generation = 0;      ///< how many heads have begun with this log
};
/// A node is to get no new workers, and to get rid of those that it has.
struct ask_drain {
    static constexpr std::uint16_t number = 17;
    std::string node;
    bool on = true; ///< false: it takes new workers again
    std::uint32_t version = cluster_version;
    bool forget = false; ///< instead: a node that is missing is no more remembered
};
/// The answer to ask_drain.
struct drain_reply {
    static constexpr std::uint16_t number = 18;
    std::uint32_t workers = 0; ///< that still run there
    std::uint32_t open = 0;    ///< nodes that take new workers now, of all
    bool missing = false;      ///< the node is not there; it is drained when it comes
    std::string not_durable;   ///< why a head that is started again will not know of it
};
/// The cluster is to end.
struct ask_stop {
    static constexpr std::uint16_t number = 19;
    std::uint32_t version = cluster_version;
};
/// The answer to ask_stop.
struct stop_reply {
    static constexpr std::uint16_t number = 20;
    std::uint32_t nodes = 0, jobs = 0; ///< that were told
};
/// A namespace is to end: its keeper and all of its actors; answered by stop_space_reply.
struct ask_stop_space {
    static constexpr std::uint16_t number = 33;
    std::uint32_t version = cluster_version;
    std::string space;
};
/// It ends.
struct stop_space_reply {
    static constexpr std::uint16_t number = 34;
    std::uint32_t workers = 0; ///< processes of actors and their tasks that end with it
};

/// All of them: every decoder by its number.
using cluster_messages =
    net::message_table<node_hello, node_welcome, driver_hello, driver_welcome, want_lease,
                       return_lease, lease_granted, lease_waits, lease_ended, lease_recalled,
                       keep_lease, lease_rests, want_group, drop_group, group_placed, group_waits,
                       group_refused, enter_space, space_entered, space_lost, cluster_changed,
                       start_worker_order, stop_worker_order, worker_ended, leave_cluster,
                       node_drains, ask_status, cluster_status, ask_drain, drain_reply, ask_stop,
                       stop_reply, ask_stop_space, stop_space_reply, output_waits, take_output,
                       node_output, worker_output, output_printed>;

} // namespace skein::cluster
