// SPDX-License-Identifier: Apache-2.0
#pragma once
// Where a driver's workers come from: processes of this host (rt/local_workers.hpp), or leases of a cluster
// (cluster/leased_workers.hpp). run() knows this interface alone; the layer above provides the cluster.

#include <skein/core/config.hpp>
#include <skein/core/bytes.hpp>
#include <skein/core/task.hpp>
#include <skein/rt/resources.hpp>
#include <skein/rt/scheduler.hpp>
#include <skein/rt/task_environment.hpp>

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
struct address;
} // namespace skein::net

namespace skein::rt {

class runtime;

/// Tasks with one demand wait for workers of their own.
struct worker_demand {
    std::uint32_t kind =
        0;               ///< the driver's number for the demand; comes back with the workers for it
    resources need{};    ///< of each worker
    std::string label{}; ///< of their node: "zone=a", "node=n1"; empty: any
    std::uint64_t group =
        0; ///< the placement group whose room they take, then the label is no node's; 0: none
    int bundle = -1;        ///< of that group; -1: any
    task_environment env;   ///< of each worker's process
    std::size_t wanted = 0; ///< workers that would have something to do now
};

/// A placement group that a driver asks for.
struct worker_group {
    std::uint64_t number = 0; ///< the driver's
    group_strategy strategy = group_strategy::pack;
    std::vector<resources> bundles{};
};

/// The label of a demand that takes the nodes in turn. No label of a node has an @ in it.
inline constexpr std::string_view spread_label = "spread@";
/// Where the label of a demand, which names no group, lets workers be.
[[nodiscard]] constraint where_labelled(const std::string& label);

/// A group as the label of a demand: "@3" any bundle of the third one, "@3/0" its first bundle. No label of a node
/// begins so.
[[nodiscard]] std::string group_label(std::uint64_t group, int bundle);
/// False: the label names no group.
[[nodiscard]] bool parse_group_label(std::string_view label, std::uint64_t& group, int& bundle);

/// What a driver is told of a worker that comes.
struct worker_room {
    std::uint32_t kind = 0; ///< it is for this demand alone, one task at a time; 0: for all
    std::vector<std::string> labels; ///< of its node, and "node=n1"
    bool is_guest =
        false; ///< another program: it calls, finds and makes actors, and nothing runs there
    bool labels_follow = false; ///< they are not known yet, see runtime::set_labels()
    /// It runs plain tasks of the worker at the other end of this connection, in which somebody waits; none: its own.
    const net::channel* aside_of = nullptr;
};

/// Where the keeper of a namespace is.
struct space_place {
    std::uint64_t keeper = 0; ///< the incarnation of its process
    std::string host;         ///< empty: that of the head, which each host knows by another address
    std::uint16_t port = 0;
    std::string address;         ///< instead of both
    std::string head_host;       ///< under which the head is reached from here
    net::network* via = nullptr; ///< from here
    byte_buffer secret;          ///< of the keeper and its guests
    byte_buffer sealed;          ///< the same for workers, see seal_secret()

    /// As it is reached from here.
    ///   errors  those of net::address::parse
    [[nodiscard]] net::address where() const;
};

/// Driver: the keeper of that incarnation has ended. Who calls through it in this program hears how.
void tell_keeper_ended(runtime& driver, const std::string& space, std::uint64_t keeper,
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
    /// So many workers for a demand have something to do; those above that number may go after a while. Returns at
    /// once. What cannot be had is told to the runtime (refuse_demand).
    virtual void want(const worker_demand& what) = 0;
    /// The task on a worker that is for one demand alone, or all tasks on one that is being given back, wait for calls
    /// that they have made, or no longer: its cpus are free meanwhile. Returns at once.
    virtual void rests(const net::channel& worker, bool on) = 0;
    /// The worker's process is to end at once: a task there was cancelled by force. Returns at once; the end is seen
    /// as that of any worker, and it is replaced.
    virtual void end_now(const net::channel& worker) = 0;
    /// All that have room are waited in by coroutines or actors: a second process is wanted for the plain tasks of this
    /// one, on its cores. False: it cannot be had. Returns at once; what becomes of it the runtime is told
    /// (serve_worker, refuse_aside).
    [[nodiscard]] virtual bool want_beside(const net::channel& worker);
    /// Room for all bundles is wanted, together or not at all. Returns at once; what becomes of it the runtime is told
    /// (group_placed, group_refused).
    virtual void want_group(const worker_group& what) = 0;
    /// Nobody holds it any more: its workers end when what runs there has ended, then the runtime is told (group_gone).
    /// Returns at once.
    virtual void drop_group(std::uint64_t number) = 0;

    /// Whether there is a cluster with namespaces behind it.
    [[nodiscard]] virtual bool has_spaces() const noexcept { return false; }
    /// Where the keeper of that namespace is, which is started if there is none; keeper: that one, or none.
    ///   errors  see get_actor
    [[nodiscard]] virtual task<space_place> find_space(std::string space, std::uint64_t keeper);
    /// Before serve(): that need not get workers until need().
    virtual void serve_spaces_only() {}
    /// There are calls for workers of the program's own.
    virtual void need() {}
};

/// What a program's command line asks of a cluster.
struct cluster_flags {
    std::string
        address;        ///< --address A: of the head, or "local"; empty: the environment, else none
    std::string join{}; ///< --join A: this process is a node's agent
    bool head = false;  ///< --head: this process is the head
    std::string listen{};     ///< --listen A: where the head listens
    std::string token_file{}; ///< --token-file F
    std::string state{};      ///< --state DIR: where the head keeps its log
    int workers = 0;          ///< --workers N; 0: as many as the cluster has cores
    std::string program{};    ///< argv[0]
    /// Lines of workers say which worker it was. On a cluster they do if nothing is said; on one host they are not read
    /// then.
    std::optional<bool> prefix_output{};
};

/// Set for workers, and for what a process of a job starts: none of them is a part of what a launcher has started.
inline constexpr const char* in_job_variable = "SKEIN_IN_JOB";

/// What a keeper of a namespace is asked for when it is started, see rt::take_boot().
inline constexpr const char* keeper_role = "keeper";

/// A cluster of the processes that a launcher has started together, led by this one; it ends with the object.
class job_cluster {
public:
    job_cluster() = default;
    job_cluster(const job_cluster&) = delete;
    job_cluster& operator=(const job_cluster&) = delete;
    virtual ~job_cluster() = default;
    /// Of its head.
    [[nodiscard]] virtual std::string address() const = 0;
};
/// The part of this process in such a job: none, its driver's, or a node's, which is over then.
struct part_in_job {
    std::unique_ptr<job_cluster> leads;
    std::optional<int> exit_code;
};

/// What the layer `cluster` gives to programs.
struct cluster_roles {
    /// The address of the head that flags or environment name; empty: none, the cluster is this host.
    std::string (*address)(const cluster_flags& flags);
    /// Workers of the cluster for a driver. All it is given must outlive it.
    ///   errors  usage (no such address), not_found, permission_denied, malformed (its token)
    std::unique_ptr<worker_source> (*workers)(loop& on, net::network& via, runtime& driver,
                                              const cluster_flags& flags);
    /// The whole life of a head, or of an agent; gives the exit code, throws error.
    int (*head)(const cluster_flags& flags);
    int (*join)(const cluster_flags& flags);
    /// Asked where neither flags nor environment name a cluster. Throws error.
    part_in_job (*take_part)(const cluster_flags& flags);
    /// The whole life of a namespace's keeper, with the boot message of this process; gives the exit code.
    int (*keep)();
};

#if defined(SKEIN_COMPILED)
/// What this program can be in a cluster.
[[nodiscard]] const cluster_roles* roles_of_program() noexcept; // in cluster/detail/program.ipp
#else
namespace detail {
inline constinit const cluster_roles* provided_roles = nullptr;
}
/// What this program can be in a cluster; nullptr: nothing, it was compiled header-only without
/// <skein/cluster/program.hpp>.
[[nodiscard]] inline const cluster_roles* roles_of_program() noexcept {
    return detail::provided_roles;
}
#endif

} // namespace skein::rt

#if SKEIN_HEADER_ONLY
#include <skein/rt/detail/worker_source.ipp>
#endif
