// SPDX-License-Identifier: Apache-2.0
#pragma once
// What tools ask a head, and its answers; see cluster/messages.hpp.

#include <skein/core/config.hpp>
#include <skein/cluster/detail/drain_messages.hpp>
#include <skein/cluster/detail/lease_messages.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace skein::cluster {

/// A node, in cluster_status.
struct node_status {
    std::string name, host, resources, used;
    std::int64_t pid = 0;
    std::uint32_t workers = 0;
    bool draining = false, suspect = false;
    std::vector<std::string> labels;
    std::uint64_t silent_ms = 0;   ///< nothing has come from it for so long; 0: it is heard
    std::uint64_t given_up_ms = 0; ///< after so long it is lost, with what runs there
    std::int64_t rests_ms = 0; ///< it gets nothing new for so long, see node_rest; 0: it does not
    std::string rests_for;     ///< what it could not start last, and why
};

/// A program, in cluster_status: a driver, or a job with the drivers that came out of it.
struct job_status {
    std::string name, host;
    std::int64_t pid = 0;
    std::uint32_t workers = 0, waiting = 0;
    std::string why; ///< why the first of those that wait does
    bool connected = true;
    std::string space;        ///< it is the space server of this namespace
    std::string job;          ///< it is what was submitted under this id
    std::string state;        ///< of that, in small letters: "running"
    std::string program;      ///< of that, the newest driver's name; "": none has come out of it
    std::uint32_t worlds = 0; ///< of its training, see job_progress
    std::string last_change;
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
    std::string space;                            ///< it was the space server of this namespace
};

/// Asks for cluster_status.
struct ask_status {
    static constexpr std::uint16_t number = 15;
    std::uint32_t version = cluster_version;
    bool past = false; ///< with the drivers that were there
    std::string job;   ///< with the programs of this job alone; "": with all
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
    std::string runs;                  ///< see driver_welcome
    std::uint64_t lost_after_ms = 0;   ///< a node that is silent for so long is lost
};

/// A node is to get no new workers, and to get rid of those that it has.
struct ask_drain {
    static constexpr std::uint16_t number = 17;
    std::string node;
    bool on = true; ///< false: it takes new workers again
    std::uint32_t version = cluster_version;
    bool forget = false; ///< instead: a node that is missing is no more remembered
    bool look = false;   ///< instead: what is left there; nothing changes
    std::int64_t within_ms = no_drain_deadline; ///< it is to be empty after so long
    bool force = false;                         ///< then what is left there is ended
};

/// The answer to ask_drain.
struct drain_reply {
    static constexpr std::uint16_t number = 18;
    std::uint32_t workers = 0; ///< that still run there
    std::uint32_t open = 0;    ///< nodes that take new workers now, of all
    bool missing = false;      ///< the node is not there; it is drained when it comes
    std::string not_durable;   ///< why a head that is started again will not know of it
    bool draining = false;
    bool force = false;
    std::int64_t left_ms = no_drain_deadline; ///< until its deadline; 0: that is over
    std::vector<drained_lease> leases; ///< that are there; of many the first most_drained_listed
};

inline constexpr std::size_t most_drained_listed = 1000;

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

/// A namespace is to end: its space server and all of its actors; answered by stop_space_reply.
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

} // namespace skein::cluster
