// SPDX-License-Identifier: Apache-2.0
#include <skein/core/error.hpp>
#include <skein/program/job.hpp>

#include <map>

#include <catch2/catch_test_macros.hpp>

using namespace skein;
using namespace skein::cluster;
using namespace skein::program;
using namespace skein::spmd;

namespace {

using variable_map = std::map<std::string, std::string, std::less<>>;

std::optional<spmd::launch_environment> job_in(variable_map set) {
    return program::job_of_launcher([&](std::string_view name) -> std::optional<std::string> {
        const auto found = set.find(name);
        if (found == set.end()) return std::nullopt;
        return found->second;
    });
}

const variable_map slurm{{"SLURM_PROCID", "1"},
                         {"SLURM_STEP_ID", "0"},
                         {"SLURM_JOB_ID", "77"},
                         {"SLURM_STEP_NUM_TASKS", "4"},
                         {"SLURM_LOCALID", "0"},
                         {"SLURM_NODEID", "1"},
                         {"SLURM_TASKS_PER_NODE", "1(x4)"},
                         {"SLURM_STEP_NODELIST", "n[1-4]"}};

variable_map with(variable_map set, const char* name, const char* value) {
    set[name] = value;
    return set;
}

sched::resources host(int cpus, std::uint64_t memory) {
    sched::resources all;
    all.cpu = cpus;
    all.memory = memory;
    return all;
}

} // namespace

TEST_CASE("processes that a launcher has started together are a job", "[J1][cluster][job]") {
    const auto one = job_in(slurm);
    REQUIRE(one);
    CHECK(one->rank == 1);
    CHECK(one->world_size == 4);
    CHECK(one->master_host == "n1");
    CHECK(job_in({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "2"}}));
    CHECK(job_in({{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}}));
    CHECK(job_in({{"JOB_COMPLETION_INDEX", "0"},
                  {"WORLD_SIZE", "2"},
                  {"MASTER_ADDR", "pod-0"},
                  {"MASTER_PORT", "7117"}}));
}

TEST_CASE("what is alone, of a training, or started by a job's process is none",
          "[J1][J3][cluster][job]") {
    CHECK_FALSE(job_in({}));
    CHECK_FALSE(job_in(with(with(slurm, "SLURM_STEP_NUM_TASKS", "1"), "SLURM_PROCID", "0")));
    CHECK_FALSE(job_in(with(slurm, program::in_job_variable, "1")));
    CHECK_FALSE(
        job_in({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}}));
    CHECK_FALSE(job_in({{"SKEIN_RANK", "0"}, {"SKEIN_WORLD_SIZE", "2"}}));
    // Half of a training's variables, or a part of SageMaker's, is nothing to a program that is no
    // rank.
    CHECK_FALSE(job_in({{"RANK", "0"}, {"WORLD_SIZE", "2"}}));
    CHECK_FALSE(job_in({{"SM_HOSTS", "nonsense"}}));
    CHECK_THROWS_AS(job_in(with(slurm, "SLURM_STEP_NUM_TASKS", "four")), error);
}

TEST_CASE("cores are a process's own when all of its neighbours can have as many",
          "[J2][cluster][job]") {
    CHECK(program::has_own_cores(2, 8, 8, 4));       // bound by the launcher
    CHECK_FALSE(program::has_own_cores(8, 8, 8, 4)); // not bound
    CHECK_FALSE(program::has_own_cores(8, 8, 8, 1));
    CHECK(program::has_own_cores(4, 4, 8, 1));       // alone in an allocation
    CHECK_FALSE(program::has_own_cores(4, 4, 8, 2)); // an allocation that both have in common
    CHECK(program::has_own_cores(2, 4, 8, 2));       // bound inside it
    CHECK_FALSE(program::has_own_cores(3, 4, 8, 2));
}

TEST_CASE("processes of one host share it out, but for what is theirs alone",
          "[J2][cluster][job]") {
    spmd::launch_environment where;
    where.local_size = 2;
    where.local_rank = 1;
    const std::vector<std::string> gpus{"0", "1", "2"};
    auto share = program::share_of_host(where, host(9, 1000), gpus, false, false);
    CHECK(share.offers.cpu == sched::amount(4));
    CHECK(share.offers.memory == 500);
    CHECK(share.gpu_names == std::vector<std::string>{"1"});
    CHECK(share.offers.gpu == sched::amount(1));
    share = program::share_of_host(where, host(4, 1000), gpus, true, true);
    CHECK(share.offers.cpu == sched::amount(4));
    CHECK(share.gpu_names == gpus);
    where.local_size = 8;
    CHECK(program::share_of_host(where, host(2, 0), {}, false, false).offers.cpu ==
          sched::amount(1));
    where.local_size = 1;
    where.local_rank = 0;
    share = program::share_of_host(where, host(2, 10), gpus, false, false);
    CHECK(share.offers.cpu == sched::amount(2));
    CHECK(share.offers.memory == 10);
    CHECK(share.gpu_names == gpus);
}
