// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of cluster/head.hpp: what this head does not keep of jobs any more, and nodes
// still have in files.

#include <skein/cluster/detail/head_state.hpp>
#include <skein/cluster/jobs.hpp>
#include <skein/core/timeout.hpp>

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>
#include <vector>

namespace skein::cluster {

namespace detail {

inline constexpr time_span node_answers_within = std::chrono::seconds(5);

} // namespace detail

/// The lines that come first of what nodes have from there on; the node of the newest attempt is
/// asked first, and alone when it has what is asked for.
SKEIN_INLINE task<node_log> head::state::ask_all(state* self, detail::job_ptr job,
                                                 ask_node_log what) {
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

SKEIN_INLINE task<node_log> head::state::ask_nodes(detail::job_ptr job, ask_node_log asked) {
    return ask_all(this, std::move(job), std::move(asked));
}

} // namespace skein::cluster
