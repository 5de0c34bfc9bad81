// SPDX-License-Identifier: Apache-2.0
#pragma once
// A cluster out of the processes that a launcher has started together: `srun -N4 ./app`, `mpirun -n
// 4 ./app`.
//
// The first one is head, node and driver; the others are nodes, and end with it. Nothing is said on
// the command line, and nothing has to run before. Each process offers what it may use of its host;
// several on one host share that out.
//
//     auto where = program::job_of_launcher();               // nothing: nobody has started several
//     if (where && where->rank == 0) {
//         program::led_job job(*where, "");                  // waits for all nodes
//         run_driver(job.address());
//     } else if (where) {
//         return program::run_job_node(*where, "");
//     }
//
// skein::run() does this, where neither flags nor SKEIN_ADDRESS name a cluster.

#include <skein/core/config.hpp>
#include <skein/core/time.hpp>
#include <skein/program/cluster_roles.hpp>
#include <skein/sched/resources.hpp>
#include <skein/spmd/environment.hpp>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace skein::program {

/// Set for the processes that a process of a job starts: they have no part in it.
using rt::in_job_variable;

/// The place of this process in a job of at least two, of Slurm (a step), Open MPI, MPICH, Intel
/// MPI or Kubernetes. Not of torchrun or skein's supervisor: what these start are ranks of a
/// training, each a program of its own.
///   errors  those of discover()
[[nodiscard]] std::optional<spmd::launch_environment> job_of_launcher(
    const spmd::variable_reader& read = spmd::process_environment());

/// Whether the cores that a process may run on are its own, or all of them its neighbours', too, as
/// they are where a launcher binds no process of a job but its allocation is a part of the host.
///   may_use     cores of this process
///   allotted    cores of the host that the job has there, as far as is known; else all of them
///   of_host     all of them
[[nodiscard]] bool has_own_cores(int may_use, int allotted, int of_host, int local_size) noexcept;

/// What one of `local_size` processes on a host offers of it.
struct job_share {
    sched::resources offers{};
    std::vector<std::string> gpu_names{};
};
/// `all`: what this process may use. Of cores to which the launcher has bound it, all; of memory
/// and of what it has in common with its neighbours, its share, but at least one core.
///   is_bound        see has_own_cores()
///   has_own_gpus    the launcher has given it its own (SLURM_GPUS_PER_TASK)
[[nodiscard]] job_share share_of_host(const spmd::launch_environment& where,
                                      const sched::resources& all,
                                      const std::vector<std::string>& gpu_names, bool is_bound,
                                      bool has_own_gpus);

/// Head and node of a job's first process, each on a thread of its own.
class led_job final : public program::job_cluster {
public:
    /// Returns when all processes of the job have joined.
    ///   errors  those of head and of meeting_point(); timeout: some have not come within
    ///           `patience`, with the hosts of those that have
    led_job(const spmd::launch_environment& where, const std::string& token_file,
            time_span patience = std::chrono::seconds(60));
    led_job(const led_job&) = delete;
    led_job& operator=(const led_job&) = delete;
    /// Ends the cluster: all nodes leave, their processes end. Blocks until they have.
    ~led_job() override;

    /// Where drivers of this host reach it.
    [[nodiscard]] std::string address() const override;

private:
    struct parts;
    std::unique_ptr<parts> parts_;
};

/// The life of a job's other processes: a node, until the first one has ended. Gives the exit code.
///   errors  those of agent::serve
[[nodiscard]] int run_job_node(const spmd::launch_environment& where,
                               const std::string& token_file);

} // namespace skein::program

#if SKEIN_HEADER_ONLY
#include <skein/program/detail/job.ipp>
#endif
