// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of cluster/head.hpp: what a node is told to start for a driver's lease.

#include <skein/cluster/detail/head_state.hpp>
#include <skein/cluster/detail/submitted_job.hpp>
#include <skein/core/read_number.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

namespace skein::cluster {

namespace detail {

/// Of the bundles of its group on its node.
[[nodiscard]] inline std::vector<std::uint64_t> gpus_of_group(const lease& l) {
    std::vector<std::uint64_t> out;
    const auto* const g = group_of(l);
    if (g == nullptr || !l.demand.gpu) return out;
    for (const auto& b : g->places)
        if (b.node == l.at->incarnation) out.push_back(b.gpus);
    return out;
}

} // namespace detail

/// A driver that came out of a job: what was submitted. nullptr: it is none, or nobody knows that
/// job any more.
SKEIN_INLINE const detail::submitted_job* head::state::job_behind(
    const detail::head_driver& driver) const {
    return jobs.find(driver.hello.job).get();
}

SKEIN_INLINE start_worker_order head::state::order_of(const detail::lease& l) const {
    const auto& d = *drivers.at(l.of->incarnation);
    start_worker_order m;
    m.lease = {d.incarnation, l.number};
    m.demand = sched::to_string(l.demand);
    m.gpus = l.gpus.bits();
    m.folder = l.cwd.empty() ? d.hello.folder : l.cwd;
    m.name = fmt::format("{}-{}", l.rank.is_there() ? "rank" : "worker", l.number);
    m.prints = d.hello.prints;
    driver_program of{d.hello.executable, d.hello.program, d.seen_from, d.hello.address,
                      d.hello.port,       l.env,           d.hello.job};
    if (l.number == space_server_lease)
        m.kind = space_server_process{std::move(of), spaces.name_of(d.incarnation)};
    else if (l.rank.is_there())
        m.kind = rank_process{std::move(of), l.rank, links.at(l.at->incarnation)->seen_from,
                              detail::gpus_of_group(l)};
    else
        m.kind = worker_process{std::move(of)};
    if (const auto* const job = job_behind(d)) {
        m.package = job->what.package;
        m.submitted = job->submitted;
        m.variables = runner.variables_of(*job);
    }
    return m;
}

} // namespace skein::cluster
