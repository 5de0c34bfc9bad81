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

inline constexpr int most_known_ranks = 4096;

/// With its group it is one of many.
inline constexpr std::size_t most_rank_bytes = std::size_t{256} << 10;

/// "NAME=value", and no zero byte, which would end it in a process.
[[nodiscard]] inline bool is_variable(std::string_view text) {
    const auto split = text.find('=');
    return split != 0 && split != text.npos && text.find('\0') == text.npos;
}

/// -1: it has none that could be told.
[[nodiscard]] inline int rank_of(const rank_order& order) {
    constexpr std::string_view name = "SKEIN_RANK=";
    for (const auto& one : order.place) {
        const auto value =
            one.starts_with(name) ? read_double(one.substr(name.size())) : std::nullopt;
        if (value && *value >= 0 && *value < most_known_ranks) return static_cast<int>(*value);
    }
    return -1;
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

/// Where runs of trainings go that all nodes are to see; "": there is no such folder.
SKEIN_INLINE std::string head::state::runs_of(const detail::submitted_job* job) const {
    if (how.runs.empty() || job == nullptr) return how.runs;
    return fmt::format("{}/{}-{:x}", how.runs, job->what.id, job->submitted);
}

/// What the environment of a job is; of its entry process, and of all that comes from it.
SKEIN_INLINE std::vector<std::string> head::state::variables_of(
    const detail::submitted_job& job) const {
    auto all = job.what.env;
    const auto names_runs = [](const std::string& v) {
        return v.starts_with(std::string(runs_variable) + "=");
    };
    if (const auto runs = runs_of(&job);
        !runs.empty() && std::none_of(all.begin(), all.end(), names_runs))
        all.push_back(fmt::format("{}={}", runs_variable, runs));
    return all;
}

/// The supervisor of its ranks has ended with it, or lives no longer than its agent lets it: they
/// neither save nor hold their nodes for the next attempt.
SKEIN_INLINE void head::state::end_ranks_of(const std::string& job) {
    for (const auto& [incarnation, d] : drivers) {
        if (d->hello.job != job || !d->hello.has_ranks) continue;
        std::vector<std::uint64_t> all;
        for (const auto& [number, l] : d->leases) all.push_back(number);
        for (const auto number : all) give_back(*d, number, true);
    }
}

/// A page shows them: also those of a job that has ended.
SKEIN_INLINE void head::state::note_rank(const detail::head_lease& l) {
    const auto job = jobs.find(l.of->hello.job);
    const auto rank = detail::rank_of(l.rank);
    if (job != nullptr && rank >= 0) job->rank_nodes[rank] = l.at->name;
}

SKEIN_INLINE std::vector<rank_place> head::state::ranks_of(const detail::submitted_job& job) const {
    std::vector<rank_place> out;
    for (const auto& [rank, node] : job.rank_nodes) out.push_back({rank, node});
    if (!out.empty()) return out;
    for (const auto& [incarnation, d] : drivers) {
        if (d->hello.job != job.what.id || !d->hello.has_ranks) continue;
        for (const auto& [number, l] : d->leases)
            if (l->at != nullptr && out.size() < detail::most_known_ranks)
                out.push_back({-1, l->at->name});
    }
    return out;
}

SKEIN_INLINE start_worker_order head::state::order_of(const detail::head_lease& l) const {
    const auto& d = *l.of;
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
        m.kind = rank_process{std::move(of), l.rank, l.at->session->seen_from};
    else
        m.kind = worker_process{std::move(of)};
    if (const auto* const job = job_behind(d)) {
        m.package = job->what.package;
        m.submitted = job->submitted;
        m.variables = variables_of(*job);
    }
    return m;
}

} // namespace skein::cluster
