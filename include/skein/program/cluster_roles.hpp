// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a program can be in a cluster, behind a table of functions: a program that is compiled
// header-only, and never asks for a cluster, pays for no head. program/program.hpp fills the table.

#include <skein/core/config.hpp>
#include <skein/rt/worker_source.hpp>
#include <skein/sched/resources.hpp>

#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace skein::proc {
class children;
}
namespace skein::spmd {
struct launch_environment;
}

namespace skein::program {

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
    /// Lines of workers say which worker it was. On a cluster they do if nothing is said; on one
    /// host they are not read then.
    std::optional<bool> prefix_output{};
};

/// A cluster of the processes that a launcher has started together, led by this one; it ends with
/// the object.
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
    std::string address{}; ///< of a head that the job has already; empty: none
};
/// A rank's job, which other hosts help (program/helper_hosts.hpp).
class job_with_helpers {
public:
    job_with_helpers() = default;
    job_with_helpers(const job_with_helpers&) = delete;
    job_with_helpers& operator=(const job_with_helpers&) = delete;
    /// Without end() the hosts take it for a crash, and wait for the next start.
    virtual ~job_with_helpers() = default;
    /// The job is over: the hosts' processes end.
    virtual void end() = 0;
};

/// Where the ranks of a training run, by the cluster that the environment names.
struct ranks_on_cluster {
    /// As in spmd::supervisor_options; empty: on this host.
    std::function<std::shared_ptr<proc::children>(loop& on, net::network& via)> children{};
    std::string runs{};    ///< the folder for their runs that all nodes see; empty: there is none
    std::string why_not{}; ///< why they run on this host although a cluster is named
};

/// What the layer `cluster` gives to programs.
struct cluster_roles {
    /// The address of the head that flags or environment name; empty: none, the cluster is this
    /// host.
    std::string (*address)(const cluster_flags& flags);
    /// Workers of the cluster for a driver. All it is given must outlive it.
    ///   errors  usage (no such address), not_found, permission_denied, malformed (its token)
    std::unique_ptr<rt::worker_source> (*workers)(loop& on, net::network& via, rt::runtime& driver,
                                                  const cluster_flags& flags);
    /// The whole life of a head, or of an agent; gives the exit code, throws error.
    int (*head)(const cluster_flags& flags);
    int (*join)(const cluster_flags& flags);
    /// Asked where neither flags nor environment name a cluster. Throws error.
    part_in_job (*take_part)(const cluster_flags& flags);
    /// The part of a rank in a job that other hosts help, as long as it trains. Throws error.
    std::unique_ptr<job_with_helpers> (*take_helpers)(const spmd::launch_environment& where);
    /// The whole life of a process on a host that helps; gives the exit code, throws error.
    int (*help)(const spmd::launch_environment& where);
    /// Asks the cluster, if there is one, so it may block for a second. All but places() throws
    /// nothing.
    ///   demand       of each rank
    ///   own_runs     the folder for runs on this host, absolute
    ///   come_and_go, on_wait  see cluster::leased_ranks_options
    ranks_on_cluster (*ranks)(const sched::resources& demand, bool come_and_go,
                              const std::string& own_runs,
                              std::function<void(const std::string& why)> on_wait);
    /// The whole life of a namespace's space server, with the boot message of this process; gives
    /// the exit code.
    int (*keep)();
};

#if defined(SKEIN_COMPILED)
/// What this program can be in a cluster.
[[nodiscard]] const cluster_roles* roles_of_program() noexcept; // in program/detail/program.ipp
#else
namespace detail {
inline constinit const cluster_roles* provided_roles = nullptr;
}
/// What this program can be in a cluster; nullptr: nothing, it was compiled header-only without
/// <skein/program/program.hpp>.
[[nodiscard]] inline const cluster_roles* roles_of_program() noexcept {
    return detail::provided_roles;
}
#endif

} // namespace skein::program
