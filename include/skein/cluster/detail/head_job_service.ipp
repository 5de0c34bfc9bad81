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

namespace detail {

inline constexpr std::size_t most_listed = 1000;

/// What a list has of it: one message holds many.
[[nodiscard]] inline job_info brief(job_info job) {
    constexpr std::size_t most = 1024;
    std::size_t bytes = 0, words = 0;
    while (words < job.command.size() && bytes < most) bytes += job.command[words++].size() + 1;
    job.command.resize(words);
    if (bytes > most) job.command.back() = job.command.back().substr(0, most) + "...";
    job.last_lines.clear();
    return job;
}

} // namespace detail

// ---- what people ask ----------------------------------------------------------------------------

SKEIN_INLINE head::state::job_ptr head::state::job_called(const std::string& id) const {
    const auto found = jobs.by_id.find(id);
    if (found != jobs.by_id.end()) return found->second;
    throw error(errc::not_found,
                fmt::format("there is no job \"{}\"", printable(id.substr(0, detail::most_job_id))))
        .with_hint("skein job list shows those that there are");
}

///   held_up   held_up_jobs(), once for a whole list
SKEIN_INLINE job_info head::state::info_of(const detail::submitted_job& job,
                                           const detail::texts_by_job* held_up) const {
    job_info out;
    out.id = job.what.id;
    out.state = static_cast<std::uint8_t>(job.shown);
    out.reason = job.reason;
    if (job.state == job_state::pending && job.reason.empty())
        if (const auto d = drivers.find(job.lease_of); d != drivers.end())
            if (const auto l = d->second->leases.find(detail::entry_lease);
                l != d->second->leases.end() && l->second->request)
                out.reason = schedule.why(l->second->request);
    if (job.state == job_state::starting || job.state == job_state::running)
        if (const auto n = nodes.find(job.placed_on); n != nodes.end() && is_silent(*n->second))
            out.reason = silence_text(*n->second);
    if (job.state == job_state::running && out.reason.empty()) {
        const auto all = held_up == nullptr ? held_up_jobs() : detail::texts_by_job();
        const auto& of = held_up == nullptr ? all : *held_up;
        if (const auto waits = of.find(job.what.id); waits != of.end()) out.reason = waits->second;
    }
    if (job.is_stopping && !is_over(job.state)) out.reason = "it is being stopped";
    if (is_over(job.state) && !is_over(job.shown)) out.reason = "it has just ended";
    out.command = job.what.command;
    out.by = job.what.by;
    out.node = job.node;
    out.attempt = job.attempt;
    out.retries = job.what.retries;
    out.not_counted = job.not_counted;
    out.exit_code = job.exit_code;
    out.signal = job.signal;
    out.submitted = job.submitted;
    out.started = job.started;
    out.ended = is_over(job.shown) ? job.ended : 0;
    out.lines = job.said.total();
    out.left_out = job.said.left_out();
    out.last_lines = job.last_lines;
    return out;
}

SKEIN_INLINE job_list head::state::list_jobs(const ask_jobs& asked, std::size_t bound) const {
    job_list out;
    out.total = jobs.by_id.size();
    if (!asked.id.empty()) {
        out.jobs.push_back(info_of(*job_called(asked.id)));
        return out;
    }
    const auto most = std::min<std::size_t>(asked.most == 0 ? bound : asked.most, bound);
    const auto held_up = held_up_jobs();
    std::size_t at = 0;
    for (auto one = jobs.in_order.rbegin(); one != jobs.in_order.rend() && out.jobs.size() < most;
         ++one)
        if (at++ >= asked.first) out.jobs.push_back(detail::brief(info_of(*one->second, &held_up)));
    return out;
}

/// For people: it is not in the log.
SKEIN_INLINE void head::state::remember_attempt(detail::submitted_job& job,
                                                const std::string& reason) const {
    if (job.failed.size() >= detail::most_past_attempts) job.failed.pop_front();
    const bool has_started = job.state == job_state::running;
    job.failed.push_back(
        {job.attempt, job.node, reason.substr(0, 1024), job.exit_code, job.signal,
         has_started ? job.started : 0,
         std::chrono::duration_cast<std::chrono::milliseconds>(on_loop.wall()).count()});
}

SKEIN_INLINE void head::state::forget_job(const std::string& id) {
    const auto job = job_called(id);
    if (!is_over(job->shown))
        throw error(errc::invalid_argument,
                    fmt::format("job {} is {}: it cannot be deleted", id, to_string(job->shown)))
            .with_hint("skein job stop ends it");
    memory.forget_job(id);
    jobs.in_order.erase(job->number);
    jobs.by_id.erase(id);
    ++changes;
}

SKEIN_INLINE task<stop_job_reply> head::state::on_stop_job(state* self, cluster::stop_job asked,
                                                           std::string peer) {
    const auto job = self->job_called(asked.id);
    stop_job_reply out;
    if (!asked.forget) {
        self->stop_submitted(*job, job_state::stopped, "stopped by " + peer);
        auto written = self->memory.kept(); // the next head stops it, too
        (void)co_await written;
        out.now = self->info_of(*job);
        co_return out;
    }
    out.now = self->info_of(*job);
    self->forget_job(asked.id);
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
    of.on<ask_jobs, job_list>([this](ask_jobs m, const net::caller& who) -> task<job_list> {
        return [](state* self, ask_jobs asked, std::string peer) -> task<job_list> {
            detail::check_version(asked.version, peer);
            co_return self->list_jobs(asked, detail::most_listed);
        }(this, std::move(m), who.peer);
    });
    // The session owns the service: a pointer, not a share, or neither would ever end.
    of.on<follow_job, job_lines>([this, weak = std::weak_ptr<detail::head_session>(s)](
                                     follow_job m, const net::caller& who) -> task<job_lines> {
        detail::check_version(m.version, who.peer);
        auto by = weak.lock();
        if (by == nullptr) throw error(errc::closed, "its link has ended");
        return follow(this, std::move(by), std::move(m));
    });
    of.on<ask_log, job_log>([this](ask_log m, const net::caller& who) -> task<job_log> {
        detail::check_version(m.version, who.peer);
        return read_log(this, std::move(m));
    });
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
                jobs.by_id.at(d->second->attempt_of)->pid = m.pid;
            entry_runs(m.lease);
        });
    of.on_tell<job_rows>([this, of_node](job_rows m, const net::caller& who) {
        const auto d = drivers.find(m.lease.driver);
        if (!of_node(m.lease, who) || d == drivers.end() || d->second->attempt_of.empty()) return;
        auto& job = *jobs.by_id.at(d->second->attempt_of);
        const auto folder = printable(m.folder.substr(0, 4096));
        if (m.offset == 0 && !m.bytes.empty()) {
            job.rows.clear();
            ++job.rows_edition;
            job.pace.begin_anew();
        }
        if (job.folder != folder) job.told.clear(); // of another run
        job.folder = folder;
        job.run = m.run.substr(0, 256);
        if (!m.told.empty()) job.told = m.told.substr(0, detail::table_reader::most_told);
        ++changes;
        job.news.wake_all();
        if (m.bytes.empty() || m.offset != job.rows.size() ||
            job.rows.size() + m.bytes.size() > detail::most_rows_bytes)
            return;
        job.rows += as_text(m.bytes);
        job.pace.came(on_loop.now(), progress_of(job.rows).step);
    });
}

// ---- for who is on the head's loop --------------------------------------------------------------

SKEIN_INLINE std::uint64_t head::changes() const noexcept { return state_->changes; }
SKEIN_INLINE job_list head::jobs(const std::string& id) const {
    ask_jobs asked;
    asked.id = id;
    return state_->list_jobs(asked, SIZE_MAX);
}
SKEIN_INLINE job_lines head::job_output(const std::string& id, std::uint64_t from) const {
    return state_->lines_of(*state_->job_called(id), from);
}
SKEIN_INLINE task<job_log> head::job_log_from(std::string id, std::uint64_t from) {
    ask_log asked;
    asked.id = std::move(id);
    asked.from = from;
    return state::read_log(state_.get(), std::move(asked));
}
SKEIN_INLINE job_table_text head::job_table(const std::string& id) const {
    const auto job = state_->job_called(id);
    return {job->run, job->rows, job->rows_edition};
}
SKEIN_INLINE job_course head::course(const std::string& id) const {
    const auto job = state_->job_called(id);
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
    return state::find_table(state_.get(), std::move(id));
}
SKEIN_INLINE task<submit_reply> head::submit(job_request what) {
    submit_job asked;
    asked.what = std::move(what);
    return state::on_submit(state_.get(), std::move(asked));
}
SKEIN_INLINE job_info head::end_job(const std::string& id, const std::string& by) {
    const auto job = state_->job_called(id);
    state_->stop_submitted(*job, job_state::stopped, "stopped by " + by);
    return state_->info_of(*job);
}
SKEIN_INLINE void head::forget_job(const std::string& id) { state_->forget_job(id); }
SKEIN_INLINE void head::set_web(std::shared_ptr<head_web> by) {
    state_->web = std::move(by);
    state_->door.on_http([of = state_->web](std::unique_ptr<net::stream> with, byte_buffer first,
                                            net::admission* place) {
        return of->serve(std::move(with), std::move(first), place);
    });
}

} // namespace skein::cluster
