// SPDX-License-Identifier: Apache-2.0
#pragma once
// Where a driver's workers come from: processes of this host (program/local_workers.hpp), or leases
// of a cluster (cluster/leased_workers.hpp). run() knows this interface alone; the layer above
// provides the cluster.

#include <skein/core/config.hpp>
#include <skein/core/bytes.hpp>
#include <skein/core/task.hpp>
#include <skein/net/address.hpp>
#include <skein/net/token.hpp>
#include <skein/sched/demands.hpp>
#include <skein/sched/resources.hpp>
#include <skein/sched/scheduler.hpp>
#include <skein/sched/task_environment.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace skein {
class loop;
}

namespace skein::net {
class channel;
class network;
} // namespace skein::net

namespace skein::rt {

class runtime;

/// Tasks with one demand wait for workers of their own.
struct worker_demand {
    sched::demand_id demand; ///< the driver's number for it; comes back with the workers for it
    sched::resources need{}; ///< of each worker
    std::string label{};     ///< of their node: "zone=a", "node=n1"; empty: any
    std::uint64_t group =
        0; ///< the placement group whose room they take, then the label is no node's; 0: none
    int bundle = -1;             ///< of that group; -1: any
    sched::task_environment env; ///< of each worker's process
    std::size_t wanted = 0;      ///< workers that would have something to do now
};

/// A placement group that a driver asks for.
struct worker_group {
    std::uint64_t number = 0; ///< the driver's
    sched::group_strategy strategy = sched::group_strategy::pack;
    std::vector<sched::resources> bundles{};
};

/// What a driver is told of a worker that comes.
struct worker_info {
    sched::demand_id demand; ///< it is for this one alone, one task at a time; none: for all
    std::vector<std::string> labels; ///< of its node, and "node=n1"
    bool is_space_client =
        false; ///< another program: it calls, finds and makes actors, and nothing runs there
    bool labels_follow = false; ///< they are not known yet, see runtime::set_labels()
    /// It runs plain tasks of the worker at the other end of this connection, in which somebody
    /// waits; none: its own.
    const net::channel* aside_of = nullptr;
};

/// Where the space server of a namespace is.
struct space_place {
    std::uint64_t space_server = 0; ///< the incarnation of its process
    std::string host; ///< empty: that of the head, which each host knows by another address
    std::uint16_t port = 0;
    std::string address;         ///< instead of both
    std::string head_host;       ///< under which the head is reached from here
    net::network* via = nullptr; ///< from here
    byte_buffer secret;          ///< of the space server and its space clients
    byte_buffer sealed;          ///< the same for workers, see seal_secret()

    /// The address under which the space server is reached from here.
    ///   errors  those of net::address::parse
    [[nodiscard]] net::address where() const;
};

/// Of a program with workers on several nodes, each of which has a store.
struct store_meeting {
    net::token secret{};
    net::address at{}; ///< where the driver's listens; once workers may come
};

/// Driver: the space server of that incarnation has ended. Who calls through it in this program
/// hears how.
void tell_space_server_ended(runtime& driver, const std::string& space, std::uint64_t space_server,
                             const std::string& how);

/// Brings workers to a driver's runtime. Its serve() must have ended before it is destroyed.
class worker_source {
public:
    worker_source() = default;
    worker_source(const worker_source&) = delete;
    worker_source& operator=(const worker_source&) = delete;
    virtual ~worker_source() = default;

    /// Gets workers and replaces those that are lost, until stop() and the runtime's close().
    [[nodiscard]] virtual task<void> serve() = 0;
    /// No worker comes from now on.
    virtual void stop() noexcept = 0;
    /// Says how many workers for a demand have something to do; those above that number may go
    /// after a while. Returns at once. A demand that cannot be served is told to the runtime
    /// (refuse_demand).
    virtual void want(const worker_demand& what) = 0;
    /// The task on a worker that is for one demand alone, or all tasks on one that is being given
    /// back, wait for calls that they have made, or no longer: its cpus are free meanwhile. Returns
    /// at once.
    virtual void blocked(const net::channel& worker, bool on) = 0;
    /// The worker's process is to end at once: a task there was cancelled by force. Returns at
    /// once; the end is seen as that of any worker, and it is replaced.
    virtual void end_now(const net::channel& worker) = 0;
    /// Asks for a second process beside a worker, on its cores, for plain tasks, since coroutines
    /// or actors wait in all workers that have room. False: it cannot be had. Returns at once; the
    /// runtime is told what becomes of it (serve_worker, refuse_aside).
    [[nodiscard]] virtual bool want_beside(const net::channel& worker);
    /// Asks for room for all bundles of a group, together or not at all. Returns at once; the
    /// runtime is told what becomes of it (group_placed, group_refused).
    virtual void want_group(const worker_group& what) = 0;
    /// No handle to a group is left: its workers end when what runs there has ended, then the
    /// runtime is told (group_gone). Returns at once.
    virtual void drop_group(std::uint64_t number) = 0;

    /// How the stores of its nodes and of the driver meet; nothing: there is one host.
    [[nodiscard]] virtual std::optional<store_meeting> stores() const { return std::nullopt; }

    /// Whether there is a cluster with namespaces behind it.
    [[nodiscard]] virtual bool has_spaces() const noexcept { return false; }
    /// Where the space server of that namespace is, which is started if there is none; space
    /// server: that one, or none.
    ///   errors  see get_actor
    [[nodiscard]] virtual task<space_place> find_space(std::string space,
                                                       std::uint64_t space_server);
    /// Before serve(): that need not get workers until need().
    virtual void serve_spaces_only() {}
    /// The program has calls for workers of its own; see serve_spaces_only().
    virtual void need() {}
};

/// Set for workers, and for what a process of a job starts: none of them is a part of what a
/// launcher has started.
inline constexpr const char* in_job_variable = "SKEIN_IN_JOB";

/// What a space server of a namespace is asked for when it is started, see proc::take_boot().
inline constexpr const char* space_server_role = "space_server";

} // namespace skein::rt

#if SKEIN_HEADER_ONLY
#include <skein/rt/detail/worker_source.ipp>
#endif
