// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of cluster/head.hpp: what a node is told to start for a driver's lease.

#include <skein/cluster/detail/head_state.hpp>
#include <skein/cluster/detail/submitted_job.hpp>
#include <skein/core/read_number.hpp>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

namespace skein::cluster {

namespace detail {

/// With its group it is one of many.
inline constexpr std::size_t most_rank_bytes = std::size_t{256} << 10;

/// "NAME=value", and no zero byte, which would end it in a process.
[[nodiscard]] inline bool is_variable(std::string_view text) {
    const auto split = text.find('=');
    return split != 0 && split != text.npos && text.find('\0') == text.npos;
}

} // namespace detail

/// What is wrong with what a driver wants started as a rank.
SKEIN_INLINE std::optional<error> head::state::objection(const rank_order& rank) {
    std::size_t bytes = 0;
    for (const auto* all : {&rank.place, &rank.argv, &rank.env})
        for (const auto& text : *all) bytes += text.size() + 1;
    if (bytes > detail::most_rank_bytes)
        return error(errc::too_large,
                     fmt::format("place, arguments and environment of a rank have {} bytes, at "
                                 "most {} are taken",
                                 bytes, detail::most_rank_bytes));
    const bool are_good = std::all_of(rank.place.begin(), rank.place.end(), detail::is_variable) &&
                          std::all_of(rank.env.begin(), rank.env.end(), detail::is_variable);
    const bool no_zero = std::all_of(rank.argv.begin(), rank.argv.end(),
                                     [](const auto& text) { return text.find('\0') == text.npos; });
    if (!are_good || !no_zero || (rank.is_there() && (rank.argv.empty() || rank.port == 0)))
        return error(errc::malformed, "an order for a rank with which no process could be started");
    return std::nullopt;
}

/// A driver that came out of a job: what was submitted. nullptr: it is none, or nobody knows that
/// job any more.
SKEIN_INLINE const detail::submitted_job* head::state::job_behind(
    const detail::head_driver& driver) const {
    return jobs.find(driver.hello.job).get();
}

SKEIN_INLINE start_worker_order head::state::order_of(const detail::head_lease& l) const {
    const auto& d = *l.of;
    start_worker_order m;
    m.lease = {d.incarnation, l.number};
    m.demand = sched::to_string(l.demand);
    m.gpus = l.gpus.bits();
    m.executable = d.hello.executable;
    m.program = d.hello.program;
    m.folder = l.cwd.empty() ? d.hello.folder : l.cwd;
    m.env = l.env;
    m.name = fmt::format("worker-{}", l.number);
    if (l.number == space_server_lease) m.space = spaces.name_of(d.incarnation);
    m.driver_host = d.seen_from;
    m.driver_port = d.hello.port;
    m.driver_address = d.hello.address;
    m.prints = d.hello.prints;
    m.rank = l.rank;
    if (m.rank.is_there()) {
        m.name = fmt::format("rank-{}", l.number);
        m.node_host = l.at->session->seen_from;
    }
    m.of_job = d.hello.job;
    if (const auto* const job = job_behind(d)) {
        m.package = job->what.package;
        m.submitted = job->submitted;
        m.variables = runner.variables_of(*job);
    }
    return m;
}

} // namespace skein::cluster
