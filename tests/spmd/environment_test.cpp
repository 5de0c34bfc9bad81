// SPDX-License-Identifier: Apache-2.0
#include <skein/core/error.hpp>
#include <skein/program/job.hpp>
#include <skein/spmd/environment.hpp>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

using namespace skein;
using namespace skein::spmd;
using Catch::Matchers::ContainsSubstring;

namespace {

using variable_map = std::map<std::string, std::string, std::less<>>;

spmd::launch_environment discover_in(variable_map set) {
    return spmd::discover([&](std::string_view name) -> std::optional<std::string> {
        const auto found = set.find(name);
        if (found == set.end()) return std::nullopt;
        return found->second;
    });
}

std::string refusal(variable_map set) {
    try {
        (void)discover_in(std::move(set));
    } catch (const error& e) {
        return e.what();
    }
    return "accepted";
}

const variable_map torchrun{{"RANK", "3"},
                            {"WORLD_SIZE", "4"},
                            {"LOCAL_RANK", "1"},
                            {"LOCAL_WORLD_SIZE", "2"},
                            {"MASTER_ADDR", "node-0"},
                            {"MASTER_PORT", "29500"}};
const variable_map srun{{"SLURM_PROCID", "5"},
                        {"SLURM_STEP_ID", "2"},
                        {"SLURM_JOB_ID", "77"},
                        {"SLURM_STEP_NUM_TASKS", "7"},
                        {"SLURM_LOCALID", "1"},
                        {"SLURM_NODEID", "2"},
                        {"SLURM_STEP_TASKS_PER_NODE", "2(x3),1"},
                        {"SLURM_STEP_NODELIST", "n[01-03],big"}};

} // namespace

TEST_CASE("a process without a launcher is alone") {
    const auto e = discover_in({{"HOME", "/home/a"}});
    CHECK_FALSE(e.is_launched());
    CHECK(e.rank == 0);
    CHECK(e.world_size == 1);
}

TEST_CASE("torchrun's variables give rank, world and the master") {
    const auto e = discover_in(torchrun);
    CHECK(e.source == "torch");
    CHECK(e.rank == 3);
    CHECK(e.world_size == 4);
    CHECK(e.local_rank == 1);
    CHECK(e.local_size == 2);
    CHECK(e.master_host == "node-0");
    CHECK(e.master_port == 29500);
}

TEST_CASE("torchrun's own store keeps its port and ours takes the next") {
    auto set = torchrun;
    set["TORCHELASTIC_USE_AGENT_STORE"] = "True";
    set["TORCHELASTIC_RESTART_COUNT"] = "2";
    const auto e = discover_in(set);
    CHECK(e.master_port == 29501);
    CHECK(e.attempt == 2);
}

TEST_CASE("a Slurm step gives rank, tasks of this node and the first node") {
    const auto e = discover_in(srun);
    CHECK(e.source == "slurm");
    CHECK(e.rank == 5);
    CHECK(e.world_size == 7);
    CHECK(e.local_rank == 1);
    CHECK(e.local_size == 2);
    CHECK(e.master_host == "n01");
    CHECK(e.master_port >= 20000);
    CHECK(e.job_id == "77.2");
}

TEST_CASE("ranks of one Slurm step agree on the port and two steps differ") {
    auto other_rank = srun, other_step = srun;
    other_rank["SLURM_PROCID"] = "0";
    other_step["SLURM_STEP_ID"] = "3";
    CHECK(discover_in(srun).master_port == discover_in(other_rank).master_port);
    CHECK(discover_in(srun).master_port != discover_in(other_step).master_port);
}

TEST_CASE("a Slurm batch script outside a step is not a world") {
    CHECK_FALSE(discover_in({{"SLURM_PROCID", "0"}, {"SLURM_JOB_ID", "7"}, {"SLURM_NTASKS", "4"}})
                    .is_launched());
}

TEST_CASE("a Kubernetes indexed job gives its index as rank") {
    const auto e = discover_in({{"JOB_COMPLETION_INDEX", "1"},
                                {"WORLD_SIZE", "2"},
                                {"MASTER_ADDR", "train-0.train"},
                                {"MASTER_PORT", "6000"}});
    CHECK(e.source == "kubernetes");
    CHECK(e.rank == 1);
    CHECK(e.master_host == "train-0.train");
}

TEST_CASE("Open MPI's variables give rank and local rank") {
    const auto e = discover_in({{"OMPI_COMM_WORLD_RANK", "1"},
                                {"OMPI_COMM_WORLD_SIZE", "2"},
                                {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                                {"PMIX_NAMESPACE", "prterun-1"}});
    CHECK(e.source == "openmpi");
    CHECK(e.rank == 1);
    CHECK(e.local_size == 2);
    CHECK(e.master_port >= 20000);
}

TEST_CASE("MPICH's variables give rank and size") {
    const auto e = discover_in(
        {{"PMI_RANK", "2"}, {"PMI_SIZE", "3"}, {"MPI_LOCALRANKID", "2"}, {"MPI_LOCALNRANKS", "3"}});
    CHECK(e.source == "pmi");
    CHECK(e.rank == 2);
    CHECK(e.local_rank == 2);
}

TEST_CASE("mpirun inside a Slurm step is what started the process, not the step that carries it") {
    auto open_mpi = srun, mpich = srun, own = srun;
    open_mpi["OMPI_COMM_WORLD_RANK"] = "3";
    open_mpi["OMPI_COMM_WORLD_SIZE"] = "4";
    const auto e = discover_in(open_mpi);
    CHECK(e.source == "openmpi");
    CHECK(e.rank == 3);
    CHECK(e.world_size == 4);
    mpich["PMI_RANK"] = "1";
    mpich["PMI_SIZE"] = "2";
    CHECK(discover_in(mpich).source == "pmi");
    CHECK(discover_in(mpich).rank == 1);
    // srun --mpi=pmi2 sets both, and means the same.
    own["PMI_RANK"] = own.at("SLURM_PROCID");
    own["PMI_SIZE"] = own.at("SLURM_STEP_NUM_TASKS");
    CHECK(discover_in(own).source == "slurm");
    CHECK(discover_in(own).job_id == "77.2");
}

TEST_CASE("what differs between the ranks of an MPI job is not its id") {
    const auto e = discover_in(
        {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"PMI_ID", "1"}, {"HYDI_CONTROL_FD", "9"}});
    CHECK(e.job_id.empty());
}

TEST_CASE("SageMaker's host list gives the rank of this host") {
    const auto e =
        discover_in({{"SM_HOSTS", R"(["algo-1","algo-2"])"}, {"SM_CURRENT_HOST", "algo-2"}});
    CHECK(e.source == "sagemaker");
    CHECK(e.rank == 1);
    CHECK(e.world_size == 2);
    CHECK(e.master_host == "algo-1");
    CHECK(
        discover_in({{"SM_HOSTS", " [ \"a\" ,\n\"b\" ] "}, {"SM_CURRENT_HOST", "a"}}).world_size ==
        2);
}

TEST_CASE("a host list of SageMaker that is no list of names is refused") {
    for (const char* text : {"", "a", "[]", "[", "[\"a\"", "[\"a\",]", "[\"a\" \"b\"]", "[\"a\"] x",
                             "[\"a]", "[\"a\", 1]", "[\"a\\n\", \"a\"]", "{\"a\": 1}"}) {
        CAPTURE(text);
        CHECK_THROWS_AS(discover_in({{"SM_HOSTS", text}, {"SM_CURRENT_HOST", "a"}}), skein::error);
    }
}

namespace {

/// SageMaker's variables on a host of a job with these groups: {{"gpu", {"algo-1"}}, ...}.
variable_map sagemaker(
    const std::string& here,
    const std::vector<std::pair<std::string, std::vector<std::string>>>& groups) {
    const auto list = [](const std::vector<std::string>& names) {
        std::string out;
        for (const auto& name : names) out += (out.empty() ? "\"" : ", \"") + name + "\"";
        return "[" + out + "]";
    };
    std::vector<std::string> all;
    std::string mine, told;
    for (const auto& [name, hosts] : groups) {
        all.insert(all.end(), hosts.begin(), hosts.end());
        if (std::find(hosts.begin(), hosts.end(), here) != hosts.end()) mine = name;
        told += (told.empty() ? "" : ",") + std::string(R"({"instance_group_name":")") + name +
                R"(","instance_type":"ml.c5.xlarge","hosts":)" + list(hosts) + "}";
    }
    std::sort(all.begin(), all.end());
    return {{"SM_HOSTS", list(all)},
            {"SM_CURRENT_HOST", here},
            {"SM_RESOURCE_CONFIG",
             R"({"current_host":")" + here + R"(","current_instance_type":"ml.c5.xlarge",)" +
                 R"("current_group_name":")" + mine + R"(","hosts":)" + list(all) +
                 R"(,"instance_groups":[)" + told + R"(],"network_interface_name":"eth0"})"}};
}

variable_map with(variable_map set, const char* name, std::string value) {
    set[name] = std::move(value);
    return set;
}

variable_map with_config(variable_map set, const std::string& from, const std::string& to) {
    auto& config = set["SM_RESOURCE_CONFIG"];
    REQUIRE(config.find(from) != std::string::npos);
    config.replace(config.find(from), from.size(), to);
    return set;
}

const std::vector<std::pair<std::string, std::vector<std::string>>> unlike{
    {"cpu", {"algo-1", "algo-3"}}, {"gpu", {"algo-4", "algo-2"}}};

} // namespace

TEST_CASE("of SageMaker's groups the one called gpu trains, the others help") {
    const auto first = discover_in(sagemaker("algo-2", unlike));
    CHECK(first.role == host_role::trains);
    CHECK(first.rank == 0); // in the order of SM_HOSTS, among those that train
    CHECK(first.world_size == 2);
    CHECK(first.helper_hosts == 2);
    CHECK(first.group == "gpu");
    CHECK(first.host == "algo-2");
    CHECK(first.master_host == "algo-2");
    CHECK(discover_in(sagemaker("algo-4", unlike)).rank == 1);
    const auto helper = discover_in(sagemaker("algo-3", unlike));
    CHECK(helper.role == host_role::helps);
    CHECK(helper.rank == -1);
    CHECK(helper.world_size == 2);
    CHECK(helper.group == "cpu");
    CHECK(helper.host == "algo-3");
    CHECK(helper.master_host == "algo-2");
    CHECK(helper.is_launched());
}

TEST_CASE("SKEIN_TRAIN_GROUP says which of SageMaker's groups trains") {
    const auto there = with(sagemaker("algo-1", unlike), "SKEIN_TRAIN_GROUP", "cpu");
    CHECK(discover_in(there).rank == 0);
    CHECK(discover_in(there).world_size == 2);
    CHECK(discover_in(with(sagemaker("algo-2", unlike), "SKEIN_TRAIN_GROUP", "cpu")).role ==
          host_role::helps);
}

TEST_CASE("a single group of SageMaker's trains as a whole, whatever it is called") {
    const auto e = discover_in(sagemaker("algo-2", {{"homogeneousCluster", {"algo-1", "algo-2"}}}));
    CHECK(e.role == host_role::trains);
    CHECK(e.rank == 1);
    CHECK(e.world_size == 2);
    CHECK(e.helper_hosts == 0);
    // A configuration without groups, as older ones are, says nothing more than SM_HOSTS.
    CHECK(discover_in({{"SM_HOSTS", R"(["a","b"])"},
                       {"SM_CURRENT_HOST", "b"},
                       {"SM_RESOURCE_CONFIG", R"({"current_host":"b","hosts":["b","a"]})"}})
              .rank == 1);
}

TEST_CASE("groups of SageMaker's of which none is said to train are an error that lists them") {
    const auto set = sagemaker("a", {{"fast", {"a"}}, {"slow", {"b"}}});
    CHECK_THAT(refusal(set), ContainsSubstring("fast, slow") &&
                                 ContainsSubstring("set SKEIN_TRAIN_GROUP to the group"));
    CHECK_THAT(refusal(with(set, "SKEIN_TRAIN_GROUP", "gpu")),
               ContainsSubstring("SKEIN_TRAIN_GROUP=gpu") && ContainsSubstring("fast, slow"));
    CHECK_THAT(
        refusal({{"SM_HOSTS", R"(["a"])"}, {"SM_CURRENT_HOST", "a"}, {"SKEIN_TRAIN_GROUP", "gpu"}}),
        ContainsSubstring("SKEIN_TRAIN_GROUP=gpu") && ContainsSubstring("none"));
    CHECK_THAT(refusal(sagemaker("a", {{"gpu", {}}, {"cpu", {"a"}}})),
               ContainsSubstring("gpu, has no hosts"));
}

TEST_CASE("SageMaker's variables that contradict each other are refused") {
    const auto set = sagemaker("algo-2", unlike);
    CHECK_THAT(refusal(with(set, "SM_HOSTS", R"(["algo-1","algo-2"])")),
               ContainsSubstring("SM_HOSTS contradict") && ContainsSubstring("algo-4"));
    CHECK_THAT(refusal(with(set, "SM_HOSTS", R"(["algo-1","algo-2","algo-3","algo-4","algo-5"])")),
               ContainsSubstring("SM_HOSTS contradict") && ContainsSubstring("algo-5"));
    CHECK_THAT(refusal(with(set, "SM_CURRENT_HOST", "algo-1")),
               ContainsSubstring("is of host algo-2, but SM_CURRENT_HOST is algo-1"));
    CHECK_THAT(
        refusal(with_config(set, R"("current_group_name":"gpu")", R"("current_group_name":"cpu")")),
        ContainsSubstring("algo-2, in group gpu, but calls cpu its group"));
    CHECK_THAT(
        refusal(with_config(set, R"("hosts":["algo-4", "algo-2"])", R"("hosts":["algo-4"])")),
        ContainsSubstring("this host, algo-2, in no group"));
    CHECK_THAT(refusal(with_config(set, R"("hosts":["algo-1", "algo-3"])",
                                   R"("hosts":["algo-1", "algo-2", "algo-3"])")),
               ContainsSubstring("SM_HOSTS contradict"));
    CHECK_THAT(refusal(sagemaker("a", {{"gpu", {"a"}}, {"gpu", {"b"}}})),
               ContainsSubstring("two groups called gpu"));
}

TEST_CASE("a configuration of SageMaker's that cannot be read is refused") {
    const auto set = sagemaker("algo-2", unlike);
    const auto& whole = set.at("SM_RESOURCE_CONFIG");
    for (std::size_t length = 1; length < whole.size(); ++length) { // cut anywhere
        CAPTURE(length);
        CHECK_THAT(refusal(with(set, "SM_RESOURCE_CONFIG", whole.substr(0, length))),
                   ContainsSubstring("SM_RESOURCE_CONFIG"));
    }
    for (const auto* text :
         {"nonsense", "[]", R"({"instance_groups":{}})", R"({"instance_groups":[{"hosts":["a"]}]})",
          R"({"instance_groups":[{"instance_group_name":7,"hosts":["a"]}]})",
          R"({"instance_groups":[{"instance_group_name":"g\u0041","hosts":["a"]}]})",
          R"({"hosts":["a" "b"]})", R"({"x":})", R"({"x":1,})", R"({"x":1} y)", R"({"x" 1})",
          R"({"x":"\)"}) {
        CAPTURE(text);
        CHECK_THAT(refusal(with(set, "SM_RESOURCE_CONFIG", text)),
                   ContainsSubstring("SM_RESOURCE_CONFIG"));
    }
    CHECK_THAT(
        refusal(with(set, "SM_RESOURCE_CONFIG", R"({"x":)" + std::string(100'000, '[') + "}")),
        ContainsSubstring("nested too deep"));
    // What is not needed may be anything.
    const auto more = with_config(set, "{",
                                  R"({"a":[1,-2.5e3,{"b":null}],"c":"\"\u0041\n",)"
                                  R"("d":{},"e":[],"f":true,)");
    CHECK(discover_in(more).rank == 0);
}

TEST_CASE("SkyPilot's node list gives the rank of this node") {
    const auto e = discover_in({{"SKYPILOT_NODE_RANK", "1"},
                                {"SKYPILOT_NUM_NODES", "2"},
                                {"SKYPILOT_NODE_IPS", "10.0.0.1\n10.0.0.2"}});
    CHECK(e.source == "skypilot");
    CHECK(e.master_host == "10.0.0.1");
}

TEST_CASE("skein's own variables win over every launcher's") {
    auto set = torchrun;
    set.insert(srun.begin(), srun.end());
    set["SKEIN_RANK"] = "0";
    set["SKEIN_WORLD_SIZE"] = "2";
    CHECK(discover_in(set).source == "skein");
}

TEST_CASE("torchrun inside a Slurm step counts as torchrun") {
    auto set = torchrun;
    set.insert(srun.begin(), srun.end());
    CHECK(discover_in(set).source == "torch");
}

TEST_CASE("a half-set environment names the missing variable") {
    auto set = torchrun;
    set.erase("MASTER_ADDR");
    CHECK_THAT(refusal(set), ContainsSubstring("MASTER_ADDR"));
    CHECK_THAT(refusal({{"OMPI_COMM_WORLD_RANK", "0"}}), ContainsSubstring("OMPI_COMM_WORLD_SIZE"));
    CHECK_THAT(refusal({{"RANK", "0"}, {"MASTER_ADDR", "node-0"}, {"MASTER_PORT", "29500"}}),
               ContainsSubstring("WORLD_SIZE is not set"));
    CHECK_THAT(refusal({{"RANK", "0"}, {"WORLD_SIZE", "2"}}),
               ContainsSubstring("MASTER_ADDR is not set"));
    CHECK_THAT(refusal({{"JOB_COMPLETION_INDEX", "0"}, {"MASTER_ADDR", "train-0"}}),
               ContainsSubstring("WORLD_SIZE is not set"));
}

TEST_CASE("a rank or an index alone is no world") {
    CHECK_FALSE(discover_in({{"RANK", "3"}}).is_launched());
    CHECK_FALSE(discover_in({{"JOB_COMPLETION_INDEX", "3"}}).is_launched());
}

TEST_CASE("a variable that is no number is refused by name and value") {
    auto set = torchrun;
    set["RANK"] = "first";
    CHECK_THAT(refusal(set), ContainsSubstring("RANK='first'"));
    set["RANK"] = "-1";
    CHECK_THAT(refusal(set), ContainsSubstring("RANK='-1'"));
}

TEST_CASE("a rank outside its world is refused") {
    auto set = torchrun;
    set["RANK"] = "4";
    CHECK_THAT(refusal(set), ContainsSubstring("rank 4 of 4"));
}

TEST_CASE("Slurm's node lists are expanded") {
    CHECK(spmd::expand_hostlist("a") == std::vector<std::string>{"a"});
    CHECK(spmd::expand_hostlist("n[1-3,07],gpu") ==
          std::vector<std::string>{"n1", "n2", "n3", "n07", "gpu"});
    CHECK(spmd::expand_hostlist("r[09-11]x") == std::vector<std::string>{"r09x", "r10x", "r11x"});
    CHECK(spmd::expand_hostlist("").empty());
}

namespace {

/// In a process of its own, which they are taken from for good: 0 if all is as it should be.
int take_and_look() {
    ::setenv("SKEIN_RANK", "1", 1);
    ::setenv("SKEIN_WORLD_SIZE", "2", 1);
    ::setenv("SKEIN_GROUP", "unix-abstract:@g", 1);
    ::setenv("SKEIN_TOKEN", std::string(64, '7').c_str(), 1);
    spmd::take_launch_variables();
    for (const char* name : {"SKEIN_RANK", "SKEIN_WORLD_SIZE", "SKEIN_GROUP", "SKEIN_TOKEN"}) {
        if (std::getenv(name) != nullptr) return 1;
        if (!spmd::process_environment()(name)) return 2;
    }
    const auto here = spmd::discover();
    if (here.source != "skein" || here.rank != 1) return 3;
    return std::getenv(program::in_job_variable) == nullptr ? 0 : 4;
}

/// A rank of a training that Slurm has started is no node of a cluster of the same step.
int take_in_a_step() {
    for (const auto& [name, value] : srun) ::setenv(name.c_str(), value.c_str(), 1);
    if (!program::job_of_launcher()) return 1;
    spmd::take_launch_variables();
    if (program::job_of_launcher()) return 2;
    return spmd::discover().source == "slurm" ? 0 : 3;
}

} // namespace

TEST_CASE("what says who this process is leaves the environment, and is still known here") {
    for (auto* look : {&take_and_look, &take_in_a_step}) {
        const pid_t child = ::fork();
        REQUIRE(child >= 0);
        if (child == 0) ::_exit(look());
        int status = 0;
        REQUIRE(::waitpid(child, &status, 0) == child);
        CHECK(WEXITSTATUS(status) == 0);
    }
}
