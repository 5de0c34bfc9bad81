// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of cluster/agent.hpp: what processes are started with, by their orders.

#include <skein/cluster/detail/agent_state.hpp>
#include <skein/cluster/detail/cluster_link.hpp>
#include <skein/cluster/detail/job_folder.hpp>
#include <skein/cluster/space_server.hpp>
#include <skein/proc/gpus.hpp>
#include <skein/rt/worker_link.hpp>
#include <skein/sched/task_environment.hpp>
#include <skein/spmd/elastic_keeper.hpp>
#include <skein/spmd/environment.hpp>
#include <skein/spmd/meeting.hpp>
#include <skein/wire/encode.hpp>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace skein::cluster {

namespace detail {

/// "NAME=value", in two.
inline void add_variables(const std::vector<std::string>& all,
                          std::vector<std::pair<std::string, std::string>>& into) {
    for (const auto& v : all) {
        const auto split = v.find('=');
        if (split != v.npos) into.emplace_back(v.substr(0, split), v.substr(split + 1));
    }
}

} // namespace detail

namespace detail {

/// What a rank of a fixed number sees: the gpus of all ranks of its training on this node, in the
/// order of local ranks, as their collectives need each other's. Empty: its own alone, as that of
/// workers that come and go, of parts of a gpu, and of parts that one process cannot see together.
[[nodiscard]] inline std::string gpus_of_ranks(const rank_process& order,
                                               const std::vector<std::string>& names) {
    std::string out;
    std::uint64_t seen = 0;
    int many = 0;
    const std::string comes_and_goes = std::string(spmd::elastic_id_variable) + "=";
    for (const auto& one : order.rank.place)
        if (one.starts_with(comes_and_goes)) return {};
    for (const auto bits : order.gpus) {
        if ((seen & bits) != 0) return {};
        seen |= bits;
        many += std::popcount(bits);
        out +=
            (out.empty() || bits == 0 ? "" : ",") + proc::gpus_by_name(sched::gpu_set(bits), names);
    }
    if (order.gpus.size() < 2 || !proc::check_gpus_together(sched::amount(many), names)) return {};
    return out;
}

} // namespace detail

/// On the head's host: where this host reaches the head it reaches the driver.
SKEIN_INLINE net::address agent::state::driver_of(const driver_program& driver,
                                                  std::uint16_t port) const {
    if (!driver.address.empty()) {
        auto at = net::address::parse(driver.address).value();
        if (port != driver.port) at.port = port;
        return at;
    }
    return net::address::tcp(driver.host.empty() ? how.head.host : driver.host, port);
}

/// It is a driver: it has the cluster's token, and runs nothing of its program.
SKEIN_INLINE proc::child_options agent::state::space_server_to_start(const worker& w) const {
    const auto& order = w.order;
    const auto& [of, space] = *order.space_server();
    space_server_order boot;
    boot.token = to_buffer(how.secret.bytes());
    boot.head = to_string(how.head);
    boot.space = space;
    boot.incarnation = order.lease.driver;
    boot.node = how.incarnation;
    boot.executable = w.path_in_job(of.executable);
    boot.program = of.program;
    boot.folder = w.path_in_job(order.folder);
    proc::child_options child;
    child.role = rt::space_server_role;
    child.name = "space server of " + space;
    child.message = wire::encode(boot);
    child.socket = false;
    child.executable = boot.executable;
    child.cwd = boot.folder;
    child.argv = {of.program, "--skein-space-server=" + space};
    return child;
}

/// What comes from a job knows it, and reaches the cluster.
SKEIN_INLINE void agent::state::add_job_environment(const worker& w,
                                                    proc::child_options& child) const {
    child.env.emplace_back("SKEIN_ADDRESS", to_string(how.head));
    if (!w.place.token_file.empty()) child.env.emplace_back("SKEIN_TOKEN_FILE", w.place.token_file);
    detail::add_variables(w.order.variables, child.env);
    child.env.emplace_back("SKEIN_JOB", w.order.job());
    if (w.place.has_own_folder) child.env.emplace_back(detail::job_folder_variable, w.place.folder);
    if (!marked.storage().empty())
        child.env.emplace_back(detail::node_mark_variable, marked.storage());
}

/// A rank is told its place, and where its group meets.
SKEIN_INLINE void agent::state::be_rank(const rank_process& order, const net::token& secret,
                                        proc::child_options& child) const {
    const auto& rank = order.rank;
    std::vector<std::pair<std::string, std::string>> place;
    detail::add_variables(rank.place, place);
    std::map<std::string, std::string> mine(place.begin(), place.end());
    const auto* const door =
        mine.contains(spmd::elastic_id_variable) ? spmd::elastic_variable : spmd::group_variable;
    mine[door] = to_string(driver_of(order.of, rank.port));
    mine[spmd::token_variable] = detail::group_secret(secret, rank.attempt).to_hex();
    // Names of hosts need not be known to each other, as those of containers; addresses work.
    auto here = order.node_host;
    if (here.empty() && !how.head.is_loopback()) here = how.head.host;
    if (!here.empty() && std::getenv("SKEIN_ADVERTISE") == nullptr)
        child.env.emplace_back("SKEIN_ADVERTISE", here);
    child.role = spmd::rank_role;
    child.message = wire::encode(mine);
    child.argv = rank.argv;
    detail::add_variables(rank.env, child.env);
    if (rank.threads != 0) child.threads = rank.threads;
}

SKEIN_INLINE proc::child_options agent::state::what_to_start(const worker& w) const {
    const auto& order = w.order;
    if (order.space_server() != nullptr) return space_server_to_start(w);
    if (order.entry() != nullptr) return entry_to_start(w);
    const auto& of = *order.driver();
    const auto secret = detail::job_secret(how.secret, order.lease.driver);
    const auto demand = sched::parse_resources(order.demand);
    const auto cpus = demand ? demand->cpu.in_steps() / sched::amount::steps : 1;
    proc::child_options child;
    child.name = order.name;
    child.socket = false;
    child.reads_output = order.prints;
    child.executable = w.path_in_job(of.executable);
    child.cwd = w.path_in_job(order.folder);
    child.threads = static_cast<int>(std::clamp<std::int64_t>(cpus, 1, UINT16_MAX));
    if (!of.job.empty()) add_job_environment(w, child);
    auto env = sched::parse_task_environment(of.env, {});
    if (!env) throw env.error();
    child.env.insert(child.env.end(), env->variables.begin(), env->variables.end());
    if (const auto good = proc::check_gpus_together(demand ? demand->gpu : 0, how.gpu_names); !good)
        throw good.error();
    if (demand && (demand->gpu || total.gpu)) // a worker sees the gpus of its lease alone
        child.env.emplace_back(proc::gpus_variable,
                               proc::gpus_by_name(sched::gpu_set(order.gpus), how.gpu_names));
    if (const auto* const rank = order.rank()) {
        be_rank(*rank, secret, child);
        if (const auto all = detail::gpus_of_ranks(*rank, how.gpu_names); !all.empty())
            for (auto& [name, value] : child.env)
                if (name == proc::gpus_variable) value = all;
        return child;
    }
    rt::worker_order boot;
    boot.token = to_buffer(secret.bytes());
    boot.address = to_string(driver_of(of, of.port));
    boot.cpus = static_cast<std::uint16_t>(child.threads);
    boot.resumes = true;
    boot.is_read = order.prints;
    boot.head_host = how.head.host;
    child.role = rt::worker_role;
    child.message = wire::encode(boot);
    child.argv = {of.program, "--skein-worker=" + order.name};
    child.threads =
        demand ? static_cast<int>(std::max<std::uint32_t>(sched::whole_cores(demand->cpu), 1)) : 1;
    return child;
}

} // namespace skein::cluster
