// SPDX-License-Identifier: Apache-2.0
#pragma once
// Who started this process, and as which rank of how many: one table of launch environments.
//
// `srun ./train`, `mpirun ./train` and `torchrun --no-python ./train` each tell a process its place
// by environment variables. discover() reads them in a fixed order and gives one answer, so the
// program need not know its launcher. A half-set environment is an error that names the missing
// variable.

#include <skein/core/config.hpp>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace skein::spmd {

/// What a host does, where a launcher has started one program on unlike hosts.
enum class host_role : std::uint8_t {
    trains, ///< its processes are ranks
    helps,  ///< it is no rank, but a node of rank 0's head (program/helper_hosts.hpp)
};

/// The place of one process among those that were started together.
struct launch_environment {
    std::string source = "local"; ///< which row of the table answered
    int rank = 0;                 ///< among those that train; of a host that helps -1
    int world_size = 1;           ///< of those that train
    int local_rank = 0;
    int local_size = 1;
    int attempt = 0;            ///< restarts so far, as far as the launcher says
    std::string last_failure{}; ///< why the attempt before ended; empty: none, or not told
    std::string master_host{};  ///< where rank 0 can be reached; empty: this host
    int master_port = 0;        ///< for rank 0's group server; 0: none given
    std::string job_id{};       ///< the same for all ranks; empty if the launcher has none
    host_role role = host_role::trains;
    std::string host{};   ///< this host, as the launcher calls it; empty: it has no groups of hosts
    std::string group{};  ///< of this host, as the launcher calls it; empty as `host`
    int helper_hosts = 0; ///< of the job: hosts that help

    /// True when a launcher has formed a world: this process is one of its ranks.
    [[nodiscard]] bool is_launched() const noexcept { return source != "local"; }
};

/// What a supervisor starts a rank as (proc::take_boot); its message is a map of variables.
inline constexpr const char* rank_role = "rank";

/// Reads one variable; nothing if it is not set.
using variable_reader = std::function<std::optional<std::string>(std::string_view name)>;

/// The variables of this process: first what its supervisor told it alone, then what
/// take_launch_variables() has taken, then the environment.
[[nodiscard]] variable_reader process_environment();

/// Moves what says who this process is (SKEIN_RANK and its like, the address and token of its
/// group) out of the environment: a program that it starts must not take itself for this rank.
/// process_environment() still gives them. Call it before there are threads; launch() does.
void take_launch_variables();
/// The same for one variable.
void take_variable(const char* name);

/// Asks the table, first row that applies wins:
///   skein        SKEIN_RANK SKEIN_WORLD_SIZE SKEIN_LOCAL_RANK SKEIN_LOCAL_SIZE SKEIN_MASTER_HOST
///                SKEIN_MASTER_PORT
///   torch        RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT
///   slurm        SLURM_PROCID SLURM_STEP_NUM_TASKS ... inside a step (srun), not in a batch script
///   kubernetes   JOB_COMPLETION_INDEX with WORLD_SIZE, MASTER_ADDR, MASTER_PORT
///   openmpi      OMPI_COMM_WORLD_RANK ...        pmi  PMI_RANK PMI_SIZE (MPICH, Intel MPI)
///   sagemaker    SM_HOSTS SM_CURRENT_HOST        skypilot  SKYPILOT_NODE_RANK SKYPILOT_NODE_IPS
///   local        none of them
/// SageMaker's SM_RESOURCE_CONFIG may have several instance groups: that of SKEIN_TRAIN_GROUP
/// trains, else the one called "gpu"; hosts of the others help. A single group trains.
///   errors  invalid_argument: a row applies but a variable is missing, no number, or contradicts
///           another one; names it. Of groups: none or an unknown one is to train
[[nodiscard]] launch_environment discover(const variable_reader& read = process_environment());

/// "n[1-3,07],gpu" -> n1 n2 n3 n07 gpu, as Slurm writes node lists.
[[nodiscard]] std::vector<std::string> expand_hostlist(std::string_view text);

} // namespace skein::spmd

#if SKEIN_HEADER_ONLY
#include <skein/spmd/detail/environment.ipp>
#endif
