// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a process offers as a node of a job, and how it takes its part in one.

#include <skein/cluster/agent.hpp>
#include <skein/core/available_cores.hpp>
#include <skein/core/available_memory.hpp>
#include <skein/net/token.hpp>
#include <skein/proc/gpus.hpp>
#include <skein/proc/process.hpp>
#include <skein/program/job.hpp>
#include <skein/sched/resources.hpp>
#include <skein/spmd/environment.hpp>
#include <skein/spmd/meeting.hpp>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <utility>

#include <sched.h>
#include <unistd.h>

#include <fmt/format.h>

namespace skein::program::detail {

/// The launcher has bound this process to cores of its own.
[[nodiscard]] inline bool is_bound(const spmd::launch_environment& where) {
    cpu_set_t mine;
    CPU_ZERO(&mine);
    if (::sched_getaffinity(0, sizeof mine, &mine) != 0) return false;
    const auto of_host = static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
    int allotted = of_host;
    if (const int of_container = skein::detail::cgroup_cpuset({}); of_container > 0)
        allotted = std::min(allotted, of_container);
    if (const auto of_job = spmd::process_environment()("SLURM_CPUS_ON_NODE")) {
        int n = 0;
        const auto [end, bad] = std::from_chars(of_job->data(), of_job->data() + of_job->size(), n);
        if (bad == std::errc() && n > 0) allotted = std::min(allotted, n);
    }
    return has_own_cores(CPU_COUNT(&mine), allotted, of_host, std::max(where.local_size, 1));
}

[[nodiscard]] inline cluster::agent_options node_of_job(const spmd::launch_environment& where,
                                                        const net::token& secret) {
    sched::resources all;
    all.cpu = available_cores();
    all.memory = available_memory();
    auto share = share_of_host(where, all, proc::visible_gpus(), is_bound(where),
                               spmd::process_environment()("SLURM_GPUS_PER_TASK").has_value());
    cluster::agent_options o;
    o.head = meeting_point(where);
    o.secret = secret;
    o.host = proc::host_name();
    o.name = where.local_size > 1 ? fmt::format("{}.{}", o.host, where.local_rank) : o.host;
    o.pid = ::getpid();
    o.offers = std::move(share.offers);
    o.gpu_names = std::move(share.gpu_names);
    o.labels = {fmt::format("rank={}", where.rank)};
    o.orphan_grace = std::chrono::seconds(10);
    o.leaves_alone = true;
    o.news = logging::level::debug;
    return o;
}

/// What this process starts from now on has no part in the job, and a secret of its own.
inline void enter_job() {
    ::setenv(rt::in_job_variable, "1", 1);
    spmd::take_variable(spmd::token_variable);
}

} // namespace skein::program::detail
