// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of cluster/head.hpp: what this head does not keep of jobs any more, and nodes
// still have in files.

#include <skein/cluster/detail/head_state.hpp>
#include <skein/cluster/jobs.hpp>
#include <skein/core/timeout.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <iterator>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace skein::cluster {

namespace detail {

inline constexpr time_span node_answers_within = std::chrono::seconds(5);

} // namespace detail

/// The lines that come first of what nodes have from there on; the node of the newest attempt is
/// asked first, and alone when it has what is asked for.
SKEIN_INLINE task<node_log> head::state::ask_nodes(state* self, job_ptr job, ask_node_log what) {
    what.job = job->what.id;
    what.submitted = job->submitted;
    std::vector<session_ptr> all;
    for (const auto& [incarnation, n] : self->nodes)
        if (n->session != nullptr && n->session->way != nullptr)
            all.insert(n->name == job->node ? all.begin() : all.end(), n->session);
    node_log best;
    for (const auto& s : all) {
        const auto way = s->way; // it may end meanwhile
        if (way == nullptr || !way->is_open()) continue;
        auto asking = as_result(
            with_timeout(way->template call<node_log>(what), detail::node_answers_within));
        auto got = co_await asking;
        if (!got) {
            if (got.error().code() == errc::cancelled) throw got.error();
            continue; // as a node that is not there
        }
        if (!got->rows.empty()) co_return std::move(*got);
        if (got->lines.empty() || got->first < what.from) continue;
        if (got->lines.size() > detail::most_followed) continue;
        if (best.lines.empty() || got->first < best.first) best = std::move(*got);
        if (best.first == what.from) break;
    }
    co_return best;
}

SKEIN_INLINE task<job_log> head::state::read_log(state* self, ask_log asked) {
    const auto job = self->job_called(asked.id);
    if (asked.attempt > job->attempt)
        throw error(errc::not_found, fmt::format("job {} has had {} attempts so far, not {}",
                                                 asked.id, job->attempt, asked.attempt))
            .with_hint("skein job status says how many there were");
    // Which lines are meant; those of an attempt under another head are known to its node alone.
    std::uint64_t low = 1, high = job->said.total();
    bool is_known = asked.attempt == 0;
    if (const auto at = job->begins.find(asked.attempt); at != job->begins.end()) {
        is_known = true;
        low = at->second;
        if (const auto next = std::next(at); next != job->begins.end()) high = next->second - 1;
    }
    auto from = std::max(asked.from, low);
    if (asked.tail != 0 && is_known && high >= asked.tail)
        from = std::max(from, high - asked.tail + 1);
    job_log out;
    out.now = self->info_of(*job);
    out.first = from;
    auto kept = job->said.from(from, detail::most_followed);
    if (!is_known) kept.lines.clear();
    if (kept.first + kept.lines.size() > high + 1)
        kept.lines.resize(high + 1 > kept.first ? high + 1 - kept.first : 0);
    const bool is_here = !kept.lines.empty() && kept.first == from;
    if (is_known && (is_here || from > high)) {
        if (is_here) out.lines = std::move(kept.lines);
        out.is_all = out.first + out.lines.size() > high;
        co_return out;
    }
    ask_node_log what;
    what.attempt = asked.attempt;
    what.from = from;
    if (!is_known) what.tail = asked.tail;
    auto asking = ask_nodes(self, job, std::move(what));
    auto found = co_await asking;
    // What comes behind the first line that is kept here is taken from here.
    const auto until = !kept.lines.empty() ? kept.first
                       : is_known          ? high + 1
                                           : std::numeric_limits<std::uint64_t>::max();
    if (found.first >= until) found.lines.clear();
    if (!found.lines.empty()) {
        found.lines.resize(std::min<std::uint64_t>(found.lines.size(), until - found.first));
        out.first = found.first;
        out.lines = std::move(found.lines);
        out.is_all = is_known && out.first + out.lines.size() > high;
        co_return out;
    }
    out.first = kept.lines.empty() && is_known ? high + 1 : kept.lines.empty() ? from : kept.first;
    out.lines = std::move(kept.lines);
    out.is_all = out.lines.empty() || (is_known && out.first + out.lines.size() > high);
    co_return out;
}

/// Of a job that has ended under another head the node may have the table.
SKEIN_INLINE task<job_table_text> head::state::find_table(state* self, std::string id) {
    const auto job = self->job_called(id);
    if (job->rows.empty() && is_over(job->state)) {
        ask_node_log what;
        what.table = true;
        auto asking = ask_nodes(self, job, std::move(what));
        auto found = co_await asking;
        if (job->rows.empty() && found.rows.size() <= detail::most_rows_bytes) {
            job->run = found.run.substr(0, 256);
            job->rows = std::move(found.rows);
        }
    }
    job_table_text out{job->run, job->rows};
    co_return out;
}

} // namespace skein::cluster
