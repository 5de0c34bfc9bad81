// SPDX-License-Identifier: Apache-2.0
#pragma once
// The rows of the launch table. Sources: torch.distributed.run (environment variables), Slurm's
// srun(1) OUTPUT ENVIRONMENT VARIABLES, Open MPI's mpirun(1), the PMI-1 convention of MPICH and
// Intel MPI, Kubernetes indexed jobs, SageMaker training toolkit, SkyPilot's distributed jobs.

#include <skein/core/error.hpp>
#include <skein/core/fnv.hpp>
#include <skein/core/known_names.hpp>
#include <skein/proc/boot.hpp>
#include <skein/spmd/detail/resource_config.hpp>
#include <skein/wire/decode.hpp>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace skein::spmd {

namespace detail {

/// What a supervisor has started this process with, and what was taken from its environment.
/// Written before there are threads, then only read.
struct own_start {
    std::map<std::string, std::string> variables; ///< this process's alone
    unique_fd socket; ///< to its supervisor; none where nothing is asked
};
SKEIN_INLINE own_start& start_of_this_process() {
    static auto mine = [] {
        own_start here;
        auto boot = proc::take_boot(rank_role);
        if (!boot) return here;
        here.variables = wire::decode<std::map<std::string, std::string>>(boot->message).value();
        here.socket = std::move(boot->socket);
        return here;
    }();
    return mine;
}

/// Variables that are this process's alone.
SKEIN_INLINE std::map<std::string, std::string>& own_variables() {
    return start_of_this_process().variables;
}

} // namespace detail

SKEIN_INLINE void take_launch_variables() {
    for (const char* name :
         {"SKEIN_RANK", "SKEIN_WORLD_SIZE", "SKEIN_LOCAL_RANK", "SKEIN_LOCAL_SIZE", "SKEIN_ATTEMPT",
          "SKEIN_LAST_FAILURE", "SKEIN_JOB_ID", "SKEIN_MASTER_HOST", "SKEIN_MASTER_PORT",
          "SKEIN_GROUP", "SKEIN_TOKEN"})
        take_variable(name);
    // A rank has its part in what a launcher has started: skein::run in it, and what it starts, has
    // no other one. The name is in_job_variable of rt/worker_source.hpp.
    for (const char* name :
         {"SLURM_STEP_ID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "JOB_COMPLETION_INDEX"})
        if (std::getenv(name) != nullptr) ::setenv("SKEIN_IN_JOB", "1", 1);
}

SKEIN_INLINE void take_variable(const char* name) {
    auto& mine = detail::own_variables();
    if (const char* value = std::getenv(name)) mine.try_emplace(name, value);
    ::unsetenv(name);
}

SKEIN_INLINE variable_reader process_environment() {
    return [](std::string_view name) -> std::optional<std::string> {
        const auto& mine = detail::own_variables();
        if (const auto found = mine.find(std::string(name)); found != mine.end())
            return found->second;
        const char* value = std::getenv(std::string(name).c_str());
        if (value == nullptr) return std::nullopt;
        return std::string(value);
    };
}

namespace detail {

/// Variables of one launcher, with errors that name them.
class variables {
public:
    variables(const variable_reader& read, std::string launcher)
        : read_(read), launcher_(std::move(launcher)) {}

    [[nodiscard]] bool has(std::string_view name) const { return read_(name).has_value(); }
    [[nodiscard]] std::string text(std::string_view name, std::string fallback = {}) const {
        return read_(name).value_or(std::move(fallback));
    }
    [[nodiscard]] std::string need(std::string_view name) const {
        auto value = read_(name);
        if (!value || value->empty()) {
            throw error(
                errc::invalid_argument,
                fmt::format("this looks like a {} launch, but {} is not set", launcher_, name))
                .with_hint(fmt::format("set {}, or unset the other {} variables", name, launcher_));
        }
        return *value;
    }
    [[nodiscard]] int number(std::string_view name) const { return parse(name, need(name)); }
    [[nodiscard]] int number(std::string_view name, int fallback) const {
        auto value = read_(name);
        return value && !value->empty() ? parse(name, *value) : fallback;
    }
    /// The first of the names that is set.
    [[nodiscard]] int first_number(std::initializer_list<std::string_view> names) const {
        for (auto name : names) {
            if (has(name)) return number(name);
        }
        return number(*names.begin());
    }

private:
    int parse(std::string_view name, const std::string& value) const {
        int out = 0;
        const auto [end, fault] = std::from_chars(value.data(), value.data() + value.size(), out);
        if (fault != std::errc{} || end != value.data() + value.size() || out < 0) {
            throw error(
                errc::invalid_argument,
                fmt::format("{}='{}' ({} launch) is not a number >= 0", name, value, launcher_));
        }
        return out;
    }
    const variable_reader& read_;
    std::string launcher_;
};

/// A port for rank 0 that all ranks of a job compute alike; above the well-known, below the
/// ephemeral.
SKEIN_INLINE int port_of_job(std::string_view job) noexcept {
    fnv1a hash;
    hash.text(job);
    return 20000 + static_cast<int>(hash.value() % 10000);
}

SKEIN_INLINE std::optional<launch_environment> from_skein(const variable_reader& read) {
    const variables v(read, "skein");
    if (!v.has("SKEIN_RANK")) return std::nullopt;
    launch_environment e;
    e.source = "skein";
    e.rank = v.number("SKEIN_RANK");
    e.world_size = v.number("SKEIN_WORLD_SIZE");
    e.local_rank = v.number("SKEIN_LOCAL_RANK", e.rank);
    e.local_size = v.number("SKEIN_LOCAL_SIZE", e.world_size);
    e.attempt = v.number("SKEIN_ATTEMPT", 0);
    e.last_failure = v.text("SKEIN_LAST_FAILURE");
    e.master_host = v.text("SKEIN_MASTER_HOST");
    e.master_port = v.number("SKEIN_MASTER_PORT", 0);
    e.job_id = v.text("SKEIN_JOB_ID");
    return e;
}

SKEIN_INLINE std::optional<launch_environment> from_torch(const variable_reader& read) {
    const variables v(read, "torchrun");
    if (!v.has("RANK") || v.has("JOB_COMPLETION_INDEX")) return std::nullopt;
    if (!v.has("WORLD_SIZE") && !v.has("MASTER_ADDR")) return std::nullopt; // somebody else's RANK
    launch_environment e;
    e.source = "torch";
    e.rank = v.number("RANK");
    e.world_size = v.number("WORLD_SIZE");
    e.local_rank = v.number("LOCAL_RANK", 0);
    e.local_size = v.number("LOCAL_WORLD_SIZE", 1);
    e.attempt = v.number("TORCHELASTIC_RESTART_COUNT", 0);
    e.master_host = v.need("MASTER_ADDR");
    e.master_port = v.number("MASTER_PORT");
    // The agent's own store listens on MASTER_PORT then; ours takes the next one.
    if (v.text("TORCHELASTIC_USE_AGENT_STORE") == "True") ++e.master_port;
    e.job_id = v.text("TORCHELASTIC_RUN_ID");
    return e;
}

/// The entry of one node in Slurm's "2(x3),1".
SKEIN_INLINE int tasks_on_node(std::string_view text, int node) {
    int at = 0;
    while (!text.empty()) {
        const auto comma = text.find(',');
        const auto part = text.substr(0, comma);
        int tasks = 0, times = 1;
        std::from_chars(part.data(), part.data() + part.size(), tasks);
        if (const auto open = part.find("(x"); open != std::string_view::npos) {
            std::from_chars(part.data() + open + 2, part.data() + part.size(), times);
        }
        if (node < at + times) return tasks;
        at += times;
        if (comma == std::string_view::npos) break;
        text.remove_prefix(comma + 1);
    }
    return 1;
}

SKEIN_INLINE std::optional<launch_environment> from_slurm(const variable_reader& read) {
    const variables v(read, "Slurm");
    if (!v.has("SLURM_PROCID") || !v.has("SLURM_STEP_ID")) return std::nullopt;
    launch_environment e;
    e.source = "slurm";
    e.rank = v.number("SLURM_PROCID");
    e.world_size = v.first_number({"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"});
    e.local_rank = v.number("SLURM_LOCALID", 0);
    const int node = v.number("SLURM_NODEID", 0);
    e.local_size = v.has("SLURM_STEP_TASKS_PER_NODE")
                       ? tasks_on_node(v.text("SLURM_STEP_TASKS_PER_NODE"), node)
                       : tasks_on_node(v.text("SLURM_TASKS_PER_NODE", "1"), node);
    e.attempt = v.number("SLURM_RESTART_COUNT", 0);
    e.job_id = v.need("SLURM_JOB_ID") + "." + v.need("SLURM_STEP_ID");
    auto nodes = v.text("SLURM_STEP_NODELIST");
    if (nodes.empty()) nodes = v.need("SLURM_JOB_NODELIST");
    const auto hosts = expand_hostlist(nodes);
    if (!hosts.empty()) e.master_host = hosts.front();
    e.master_port = v.number("SKEIN_MASTER_PORT", port_of_job(e.job_id));
    return e;
}

SKEIN_INLINE std::optional<launch_environment> from_kubernetes(const variable_reader& read) {
    const variables v(read, "Kubernetes indexed job");
    if (!v.has("JOB_COMPLETION_INDEX")) return std::nullopt;
    if (!v.has("WORLD_SIZE") && !v.has("MASTER_ADDR")) return std::nullopt; // a job of its own each
    launch_environment e;
    e.source = "kubernetes";
    e.rank = v.number("JOB_COMPLETION_INDEX");
    e.world_size = v.number("WORLD_SIZE");
    e.master_host = v.need("MASTER_ADDR");
    e.master_port = v.number("MASTER_PORT");
    e.job_id = v.text("JOB_NAME");
    return e;
}

SKEIN_INLINE std::optional<launch_environment> from_openmpi(const variable_reader& read) {
    const variables v(read, "Open MPI");
    if (!v.has("OMPI_COMM_WORLD_RANK")) return std::nullopt;
    launch_environment e;
    e.source = "openmpi";
    e.rank = v.number("OMPI_COMM_WORLD_RANK");
    e.world_size = v.number("OMPI_COMM_WORLD_SIZE");
    e.local_rank = v.number("OMPI_COMM_WORLD_LOCAL_RANK", 0);
    e.local_size = v.number("OMPI_COMM_WORLD_LOCAL_SIZE", 1);
    e.job_id = v.text("PMIX_NAMESPACE", v.text("OMPI_MCA_ess_base_jobid"));
    e.master_host = v.text("SKEIN_MASTER_HOST", v.text("MASTER_ADDR"));
    e.master_port = v.number("SKEIN_MASTER_PORT", v.number("MASTER_PORT", port_of_job(e.job_id)));
    return e;
}

SKEIN_INLINE std::optional<launch_environment> from_pmi(const variable_reader& read) {
    const variables v(read, "MPI (PMI)");
    if (!v.has("PMI_RANK")) return std::nullopt;
    // srun sets these, too, where Slurm itself starts MPI's processes: its own say more.
    if (v.has("SLURM_STEP_ID") && v.text("SLURM_PROCID") == v.text("PMI_RANK") &&
        v.text("SLURM_STEP_NUM_TASKS") == v.text("PMI_SIZE"))
        return std::nullopt;
    launch_environment e;
    e.source = "pmi";
    e.rank = v.number("PMI_RANK");
    e.world_size = v.number("PMI_SIZE");
    e.local_rank = v.number("MPI_LOCALRANKID", 0);
    e.local_size = v.number("MPI_LOCALNRANKS", 1);
    e.master_host = v.text("SKEIN_MASTER_HOST", v.text("MASTER_ADDR"));
    // PMI names no job that all ranks agree on, so job_id stays empty: PMI_ID differs by rank.
    e.master_port = v.number("SKEIN_MASTER_PORT", v.number("MASTER_PORT", port_of_job("pmi")));
    return e;
}

/// The groups of SM_RESOURCE_CONFIG, which have each of `hosts` once; empty: it tells of none.
SKEIN_INLINE std::vector<host_group> sagemaker_groups(const std::string& text,
                                                      std::vector<std::string> hosts,
                                                      const std::string& here) {
    const auto refuse = [](const std::string& why) {
        return error(errc::invalid_argument,
                     fmt::format("SM_RESOURCE_CONFIG (SageMaker launch) {}", why));
    };
    resource_config config;
    try {
        config = read_resource_config(text);
    } catch (const error& why) {
        throw refuse(fmt::format("cannot be read: {}", why.text()))
            .with_hint("it is the text of /opt/ml/input/config/resourceconfig.json");
    }
    if (!config.current_host.empty() && config.current_host != here)
        throw refuse(
            fmt::format("is of host {}, but SM_CURRENT_HOST is {}", config.current_host, here));
    std::string mine;
    std::vector<std::string> grouped;
    for (const auto& group : config.groups) {
        if (std::ranges::count(config.groups, group.name, &host_group::name) > 1)
            throw refuse(fmt::format("has two groups called {}", group.name));
        if (std::ranges::find(group.hosts, here) != group.hosts.end()) mine = group.name;
        grouped.insert(grouped.end(), group.hosts.begin(), group.hosts.end());
    }
    if (config.groups.empty()) return {};
    if (mine.empty())
        throw refuse(fmt::format("has this host, {}, in no group; its groups have {}", here,
                                 joined(grouped, ", ")));
    if (!config.current_group.empty() && config.current_group != mine)
        throw refuse(fmt::format("has this host, {}, in group {}, but calls {} its group", here,
                                 mine, config.current_group));
    std::ranges::sort(hosts);
    for (auto* list : {&grouped, &config.hosts}) {
        std::ranges::sort(*list);
        if (*list == hosts || (list == &config.hosts && list->empty())) continue;
        throw refuse(fmt::format("and SM_HOSTS contradict each other: {} has {}, SM_HOSTS has {}",
                                 list == &grouped ? "its groups together" : "its list of hosts",
                                 joined(*list, ", "), joined(hosts, ", ")));
    }
    return std::move(config.groups);
}

/// The one whose hosts are ranks. `wanted`: SKEIN_TRAIN_GROUP, or empty.
SKEIN_INLINE const host_group& group_to_train(const std::vector<host_group>& groups,
                                              const std::string& wanted) {
    std::vector<std::string> names;
    for (const auto& group : groups) names.push_back(group.name);
    const auto& name = wanted.empty() && groups.size() == 1 ? names.front()
                       : wanted.empty()                     ? std::string("gpu")
                                                            : wanted;
    const auto found = std::ranges::find(groups, name, &host_group::name);
    if (found == groups.end() && !wanted.empty())
        throw error(errc::invalid_argument,
                    fmt::format("SKEIN_TRAIN_GROUP={}: no such group of hosts (SageMaker launch), "
                                "there are: {}",
                                wanted, names.empty() ? "none" : joined(names, ", ")));
    if (found == groups.end())
        throw error(errc::invalid_argument,
                    fmt::format("SageMaker has started several groups of hosts, and none is called "
                                "gpu: {}",
                                joined(names, ", ")))
            .with_hint("set SKEIN_TRAIN_GROUP to the group that trains, on all hosts; the others "
                       "help it");
    if (found->hosts.empty())
        throw error(errc::invalid_argument,
                    fmt::format("the group that trains, {}, has no hosts (SageMaker launch)", name))
            .with_hint(
                fmt::format("set SKEIN_TRAIN_GROUP to another one of {}", joined(names, ", ")));
    return *found;
}

SKEIN_INLINE std::optional<launch_environment> from_sagemaker(const variable_reader& read) {
    const variables v(read, "SageMaker");
    if (!v.has("SM_HOSTS")) return std::nullopt;
    const auto listed = v.need("SM_HOSTS"), here = v.need("SM_CURRENT_HOST");
    std::vector<std::string> hosts;
    try {
        json_reader from(listed);
        hosts = read_names(from);
        from.end();
    } catch (const error&) {
        hosts.clear();
    }
    if (std::ranges::find(hosts, here) == hosts.end())
        throw error(
            errc::invalid_argument,
            fmt::format("SM_HOSTS='{}' (SageMaker launch) is no list with SM_CURRENT_HOST='{}'",
                        listed, here));
    launch_environment e;
    e.source = "sagemaker";
    const auto wanted = v.text("SKEIN_TRAIN_GROUP"), config = v.text("SM_RESOURCE_CONFIG");
    const auto groups =
        config.empty() ? std::vector<host_group>() : sagemaker_groups(config, hosts, here);
    auto ranks = hosts;
    if (!groups.empty() || !wanted.empty()) {
        const auto& train = group_to_train(groups, wanted);
        std::erase_if(ranks, [&](const std::string& host) {
            return std::ranges::find(train.hosts, host) == train.hosts.end();
        });
        e.host = here;
        for (const auto& group : groups)
            if (std::ranges::find(group.hosts, here) != group.hosts.end()) e.group = group.name;
        e.helper_hosts = static_cast<int>(hosts.size() - ranks.size());
    }
    const auto at = std::ranges::find(ranks, here);
    e.role = at == ranks.end() ? host_role::helps : host_role::trains;
    e.rank = e.role == host_role::helps ? -1 : static_cast<int>(at - ranks.begin());
    e.world_size = static_cast<int>(ranks.size());
    e.master_host = v.text("SKEIN_MASTER_HOST", ranks[0]);
    e.master_port = v.number("SKEIN_MASTER_PORT", 29500);
    e.job_id = v.text("TRAINING_JOB_NAME");
    return e;
}

SKEIN_INLINE std::optional<launch_environment> from_skypilot(const variable_reader& read) {
    const variables v(read, "SkyPilot");
    if (!v.has("SKYPILOT_NODE_RANK")) return std::nullopt;
    launch_environment e;
    e.source = "skypilot";
    e.rank = v.number("SKYPILOT_NODE_RANK");
    e.world_size = v.number("SKYPILOT_NUM_NODES");
    const auto addresses = v.need("SKYPILOT_NODE_IPS");
    e.master_host = addresses.substr(0, addresses.find('\n'));
    e.master_port = v.number("SKEIN_MASTER_PORT", 29500);
    e.job_id = v.text("SKYPILOT_TASK_ID");
    return e;
}

} // namespace detail

SKEIN_INLINE launch_environment discover(const variable_reader& read) {
    // Inner launchers first: mpirun in an allocation reaches other hosts by a step of its own,
    // whose variables its processes have as well.
    for (auto* row : {&detail::from_skein, &detail::from_torch, &detail::from_openmpi,
                      &detail::from_pmi, &detail::from_slurm, &detail::from_kubernetes,
                      &detail::from_sagemaker, &detail::from_skypilot}) {
        auto found = row(read);
        if (!found) continue;
        if (found->world_size < 1 || found->rank >= found->world_size) {
            throw error(errc::invalid_argument,
                        fmt::format("{} launch: rank {} of {}", found->source, found->rank,
                                    found->world_size))
                .with_hint("the launcher's variables contradict each other");
        }
        return *found;
    }
    return {};
}

SKEIN_INLINE std::vector<std::string> expand_hostlist(std::string_view text) {
    std::vector<std::string> hosts;
    while (!text.empty()) {
        // One entry ends at a comma that is outside brackets.
        std::size_t end = 0;
        for (bool inside = false; end < text.size() && (inside || text[end] != ','); ++end) {
            if (text[end] == '[') inside = true;
            if (text[end] == ']') inside = false;
        }
        const auto entry = text.substr(0, end);
        text.remove_prefix(end < text.size() ? end + 1 : end);
        const auto open = entry.find('[');
        const auto close = entry.find(']');
        if (open == std::string_view::npos || close == std::string_view::npos || close < open) {
            if (!entry.empty()) hosts.emplace_back(entry);
            continue;
        }
        auto ranges = entry.substr(open + 1, close - open - 1);
        while (!ranges.empty()) {
            const auto comma = ranges.find(',');
            const auto range = ranges.substr(0, comma);
            ranges.remove_prefix(comma == std::string_view::npos ? ranges.size() : comma + 1);
            const auto dash = range.find('-');
            const auto low = range.substr(0, dash);
            const auto high = dash == std::string_view::npos ? low : range.substr(dash + 1);
            int from = 0, to = -1;
            std::from_chars(low.data(), low.data() + low.size(), from);
            std::from_chars(high.data(), high.data() + high.size(), to);
            for (int i = from; i <= to && hosts.size() < 65536; ++i) {
                hosts.push_back(fmt::format("{}{:0{}}{}", entry.substr(0, open), i, low.size(),
                                            entry.substr(close + 1)));
            }
        }
    }
    return hosts;
}

} // namespace skein::spmd
