// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of cluster/head.hpp: what the book of jobs and their runner ask of a head, and
// what it tells of jobs on its loop.

#include <skein/cluster/detail/head_state.hpp>
#include <skein/cluster/detail/order_keys.hpp>
#include <skein/cluster/jobs.hpp>
#include <skein/core/awaitable.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/timeout.hpp>

#include <algorithm>
#include <chrono>
#include <utility>

namespace skein::cluster {

namespace detail {

inline constexpr time_span node_answers_within = std::chrono::seconds(5);

} // namespace detail

// ---- for the book -------------------------------------------------------------------------------

SKEIN_INLINE std::string head::state::why_pending(const detail::submitted_job& job) const {
    const auto* const l = leases.find({job.lease_of, detail::entry_lease});
    return l != nullptr && l->request ? leases.schedule().why(l->request) : std::string();
}

SKEIN_INLINE std::string head::state::silence_of(const detail::submitted_job& job) const {
    const auto* const n = nodes.find(job.placed_on);
    return n != nullptr && is_silent(job.placed_on) ? nodes.silence_text(*n) : std::string();
}

/// The lines that come first of what nodes have from there on; the node of the newest attempt is
/// asked first, and alone when it has what is asked for.
SKEIN_INLINE task<node_log> head::state::ask_all(state* self, detail::job_ptr job,
                                                 ask_node_log what) {
    what.job = job->what.id;
    what.submitted = job->submitted;
    std::vector<session_ptr> all;
    for (const auto& [incarnation, session] : self->links)
        if (session->way != nullptr)
            all.insert(self->nodes.find(incarnation)->name() == job->node ? all.begin() : all.end(),
                       session);
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

// ---- for their runner ---------------------------------------------------------------------------

SKEIN_INLINE detail::lease_holder& head::state::make_attempt(std::uint64_t attempt,
                                                             const std::string& job) {
    auto& d = driver_of(attempt);
    d.holder->attempt_of = job;
    d.holder->name = "job " + job;
    d.away_until = time_point::max(); // it has no driver that could be away
    leases.schedule().set_weight(d.holder->id(), 1);
    return *d.holder;
}

SKEIN_INLINE void head::state::send_order(std::uint64_t node, const start_worker_order& order) {
    auto with_keys = order;
    detail::seal_keys(with_keys, how.secret, links.at(node)->key);
    links.at(node)->tell(with_keys);
}

SKEIN_INLINE bool head::state::has_followers() const {
    return std::any_of(sessions.begin(), sessions.end(),
                       [](const session_ptr& s) { return s->hears_more; });
}

// ---- for who is on the head's loop --------------------------------------------------------------

SKEIN_INLINE std::uint64_t head::changes() const noexcept {
    return state_->jobs.changes() + state_->waits.changes() + state_->nodes.changes();
}
SKEIN_INLINE job_list head::jobs(const std::string& id) const {
    ask_jobs asked;
    asked.id = id;
    return state_->jobs.list(asked, SIZE_MAX);
}
SKEIN_INLINE job_lines head::job_output(const std::string& id, std::uint64_t from) const {
    return state_->jobs.lines_of(*state_->jobs.called(id), from);
}
SKEIN_INLINE task<job_log> head::job_log_from(std::string id, std::uint64_t from) {
    ask_log asked;
    asked.id = std::move(id);
    asked.from = from;
    return state_->jobs.read_log(std::move(asked));
}
SKEIN_INLINE job_table_text head::job_table(const std::string& id) const {
    const auto job = state_->jobs.called(id);
    return {job->run, job->rows, job->rows_edition};
}
SKEIN_INLINE job_course head::course(const std::string& id) const {
    return state_->runner.course_of(*state_->jobs.called(id));
}
SKEIN_INLINE task<job_table_text> head::find_job_table(std::string id) {
    return state_->jobs.find_table(std::move(id));
}
SKEIN_INLINE task<std::vector<stored_set>> head::job_results(std::string id) {
    return state_->files.results.sets_of(std::move(id));
}
SKEIN_INLINE task<submit_reply> head::submit(job_request what) {
    submit_job asked;
    asked.what = std::move(what);
    return state_->runner.submit(std::move(asked));
}
SKEIN_INLINE job_info head::end_job(const std::string& id, const std::string& by) {
    const auto job = state_->jobs.called(id);
    state_->runner.stop(*job, job_state::stopped, "stopped by " + by);
    return state_->jobs.info_of(*job);
}
SKEIN_INLINE void head::forget_job(const std::string& id) { state_->jobs.forget(id); }
SKEIN_INLINE void head::set_web(std::shared_ptr<head_web> by) {
    state_->web = std::move(by);
    state_->door.on_http([of = state_->web](std::unique_ptr<net::stream> with, byte_buffer first,
                                            net::admission* place) {
        return of->serve(std::move(with), std::move(first), place);
    });
}

} // namespace skein::cluster
