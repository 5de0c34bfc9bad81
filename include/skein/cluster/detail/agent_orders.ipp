// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of cluster/agent.hpp: what processes are started with, by their orders.

#include <skein/cluster/detail/agent_state.hpp>
#include <skein/cluster/detail/cluster_link.hpp>
#include <skein/cluster/detail/job_folder.hpp>
#include <skein/cluster/detail/order_keys.hpp>
#include <skein/cluster/space_server.hpp>
#include <skein/proc/gpus.hpp>
#include <skein/rt/worker_link.hpp>
#include <skein/sched/task_environment.hpp>
#include <skein/spmd/elastic_keeper.hpp>
#include <skein/spmd/environment.hpp>
#include <skein/spmd/meeting.hpp>
#include <skein/spmd/run_files.hpp>
#include <skein/wire/encode.hpp>

#include <algorithm>
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

/// What CUDA_VISIBLE_DEVICES of a rank says: its own gpus at the place of its local rank, and around
/// them those of the other ranks of its training here, which NCCL wants to see. Of parts of gpus
/// (MIG) a process sees one only: its own.
[[nodiscard]] inline std::string gpus_of_rank(const start_worker_order& order,
                                              const std::vector<std::string>& names) {
    const auto& all = order.rank()->gpus_of_group;
    const auto has_own = std::find(all.begin(), all.end(), order.gpus) != all.end();
    // Elastic workers leave one by one, and others may have the gpu of one that has left.
    const auto& place = order.rank()->rank.place;
    const auto comes_and_goes = std::any_of(place.begin(), place.end(), [](const auto& v) {
        return v.starts_with(spmd::elastic_id_variable);
    });
    const bool are_parts = !names.empty() && names.front().starts_with("MIG-");
    if (!has_own || are_parts || comes_and_goes)
        return proc::gpus_by_name(sched::gpu_set(order.gpus), names);
    std::string out;
    for (const auto bits : all) {
        const auto some = proc::gpus_by_name(sched::gpu_set(bits), names);
        out += (out.empty() || some.empty() ? "" : ",") + some;
    }
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

/// It is a driver: it has a key of its own, and runs nothing of its program.
SKEIN_INLINE proc::child_options agent::state::space_server_to_start(const worker& w) const {
    const auto& order = w.order;
    const auto& [of, space] = *order.space_server();
    space_server_order boot;
    boot.key = to_buffer(detail::process_key(how.secret, order).value().bytes());
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
    if (w.place.key != nullptr)
        child.env.emplace_back("SKEIN_TOKEN_FILE", w.place.key->path());
    else if (const auto key = detail::process_key(how.secret, w.order)) // not that of the agent
        child.env.emplace_back(spmd::token_variable, key->to_text());
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
    const bool has_entry = std::any_of(workers.begin(), workers.end(), [&](const auto& one) {
        const auto* const entry = one.second->order.entry();
        return entry != nullptr && entry->job == order.of.job && one.second->process != nullptr;
    });
    if (has_entry) mine.erase(spmd::run_files_variable); // it sees that one's files
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

SKEIN_INLINE proc::child_options agent::state::what_to_start(worker& w) {
    const auto& order = w.order;
    if (order.space_server() != nullptr) return space_server_to_start(w);
    if (order.entry() != nullptr) return entry_to_start(w);
    const auto& of = *order.driver();
    const auto secret = detail::driver_secret(how.secret, order);
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
                               order.rank() != nullptr
                                   ? detail::gpus_of_rank(order, how.gpu_names)
                                   : proc::gpus_by_name(sched::gpu_set(order.gpus), how.gpu_names));
    if (const auto* const rank = order.rank()) {
        be_rank(*rank, secret, child);
        return child;
    }
    rt::worker_order boot;
    boot.token = to_buffer(secret.bytes());
    boot.address = to_string(driver_of(of, of.port));
    boot.cpus = static_cast<std::uint16_t>(child.threads);
    boot.resumes = true;
    boot.is_read = order.prints;
    boot.head_host = how.head.host;
    boot.store = stores.join(order.lease.driver, secret, child, w.store);
    if (!boot.store.empty()) boot.store_number = stores.number_of(order.lease.driver);
    child.role = rt::worker_role;
    child.message = wire::encode(boot);
    child.argv = {of.program, "--skein-worker=" + order.name};
    child.threads =
        demand ? static_cast<int>(std::max<std::uint32_t>(sched::whole_cores(demand->cpu), 1)) : 1;
    return child;
}

} // namespace skein::cluster
