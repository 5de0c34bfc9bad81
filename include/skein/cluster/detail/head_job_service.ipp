// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of cluster/head.hpp: what people, pages and agents ask of jobs and say of them.

#include <skein/cluster/detail/cluster_link.hpp>
#include <skein/cluster/detail/head_state.hpp>
#include <skein/cluster/detail/job_folder.hpp>
#include <skein/cluster/jobs.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/printable.hpp>
#include <skein/core/timeout.hpp>

#include <algorithm>
#include <chrono>
#include <utility>

#include <fmt/format.h>

namespace skein::cluster {

// ---- what people ask ----------------------------------------------------------------------------

SKEIN_INLINE std::string head::state::why_pending(const detail::submitted_job& job) const {
    const auto d = drivers.find(job.lease_of);
    if (d == drivers.end()) return {};
    const auto l = d->second->leases.find(detail::entry_lease);
    if (l == d->second->leases.end() || !l->second->request) return {};
    return schedule.why(l->second->request);
}

SKEIN_INLINE std::string head::state::silence_of(const detail::submitted_job& job) const {
    const auto n = nodes.find(job.placed_on);
    return n != nodes.end() && is_silent(*n->second) ? silence_text(*n->second) : std::string();
}

SKEIN_INLINE task<stop_job_reply> head::state::on_stop_job(state* self, cluster::stop_job asked,
                                                           std::string peer) {
    const auto job = self->jobs.called(asked.id);
    stop_job_reply out;
    if (!asked.forget) {
        self->stop_submitted(*job, job_state::stopped, "stopped by " + peer);
        auto written = self->memory.kept(); // the next head stops it, too
        (void)co_await written;
        out.now = self->jobs.info_of(*job);
        co_return out;
    }
    out.now = self->jobs.info_of(*job);
    self->jobs.forget(asked.id);
    auto keeping = self->memory.kept();
    (void)co_await keeping;
    co_return out;
}

SKEIN_INLINE void head::state::serve_jobs(net::request_service& of, const session_ptr& s) {
    of.on<submit_job, submit_reply>(
        [this](submit_job m, const net::caller& who) -> task<submit_reply> {
            detail::check_version(m.version, who.peer);
            return on_submit(this, std::move(m));
        });
    jobs.serve(of, std::shared_ptr<bool>(s, &s->hears_more));
    of.on<stop_job, stop_job_reply>([this](stop_job m, const net::caller& who) {
        detail::check_version(m.version, who.peer);
        return on_stop_job(this, std::move(m), who.peer);
    });
    of.on<ask_login, login_reply>([this](ask_login m, const net::caller& who) {
        return [](state* self, ask_login asked, std::string peer) -> task<login_reply> {
            detail::check_version(asked.version, peer);
            if (self->web == nullptr)
                throw error(errc::not_supported, "not supported: this head answers no browsers")
                    .with_hint("the program skein does, when it was built with Boost");
            login_reply out;
            out.path = self->web->login_link();
            co_return out;
        }(this, m, who.peer);
    });
    serve_entries(of, s);
}

/// What agents say of them.
SKEIN_INLINE void head::state::serve_entries(net::request_service& of, const session_ptr& s) {
    const std::weak_ptr<detail::head_session> weak = s;
    const auto of_node = [weak](const lease_name& lease, const net::caller& who) {
        const auto here = weak.lock();
        if (here == nullptr || here->node == nullptr)
            throw error(errc::malformed, who.peer + " has not said which node it is");
        return here->node->leases.contains(lease);
    };
    of.on_tell<entry_started>(
        [this, of_node, weak](const entry_started& m, const net::caller& who) {
            if (!of_node(m.lease, who)) return;
            if (const auto here = weak.lock()) node_works(*here->node);
            if (const auto d = drivers.find(m.lease.driver);
                d != drivers.end() && !d->second->attempt_of.empty())
                jobs.called(d->second->attempt_of)->pid = m.pid;
            entry_runs(m.lease);
        });
    of.on_tell<job_rows>([this, of_node](const job_rows& m, const net::caller& who) {
        const auto d = drivers.find(m.lease.driver);
        if (!of_node(m.lease, who) || d == drivers.end() || d->second->attempt_of.empty()) return;
        jobs.keep_rows(*jobs.called(d->second->attempt_of), m);
    });
}

// ---- for who is on the head's loop --------------------------------------------------------------

SKEIN_INLINE std::uint64_t head::changes() const noexcept {
    return state_->changes + state_->jobs.changes();
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
    const auto job = state_->jobs.called(id);
    job_course out;
    out.now = progress_of(job->rows);
    out.now.folder = job->folder;
    add_told(out.now, job->told);
    if (!out.now.steps_per_s && job->state == job_state::running)
        out.now.steps_per_s = job->pace.steps_per_s();
    out.ranks = state_->ranks_of(*job);
    out.attempts.assign(job->failed.begin(), job->failed.end());
    return out;
}
SKEIN_INLINE task<job_table_text> head::find_job_table(std::string id) {
    return state_->jobs.find_table(std::move(id));
}
SKEIN_INLINE task<submit_reply> head::submit(job_request what) {
    submit_job asked;
    asked.what = std::move(what);
    return state::on_submit(state_.get(), std::move(asked));
}
SKEIN_INLINE job_info head::end_job(const std::string& id, const std::string& by) {
    const auto job = state_->jobs.called(id);
    state_->stop_submitted(*job, job_state::stopped, "stopped by " + by);
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
