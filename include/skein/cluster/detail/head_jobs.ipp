// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of cluster/head.hpp: jobs, from their submission to their end.

#include <skein/cluster/detail/head_state.hpp>
#include <skein/cluster/detail/job_folder.hpp>
#include <skein/cluster/job_storage.hpp>
#include <skein/cluster/jobs.hpp>
#include <skein/core/backoff.hpp>
#include <skein/core/log.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/printable.hpp>
#include <skein/core/random.hpp>
#include <skein/core/sleep.hpp>

#include <algorithm>
#include <chrono>
#include <utility>

#include <fmt/format.h>

namespace skein::cluster {

SKEIN_INLINE detail::job_ptr head::state::submit(job_request what, package_pin files) {
    auto job = jobs.add(std::move(what), std::move(files));
    logging::at(how.news, "head", "job submitted",
                {{"job", job->what.id},
                 {"by", job->what.by},
                 {"command", printable(job->what.command.front())}});
    begin_attempt(*job);
    jobs.note(*job);
    pump();
    return job;
}

SKEIN_INLINE task<submit_reply> head::state::on_submit(state* self, submit_job asked) {
    package_pin files;
    auto job = self->jobs.same(asked);
    if (job == nullptr) {
        auto holding = self->packages.hold(asked.what.package);
        files = co_await holding;
        job = self->submit(std::move(asked.what), std::move(files));
    }
    submit_reply out;
    out.id = job->what.id;
    auto keeping = self->memory.kept(); // who is told that it is taken may rely on it
    out.not_durable = co_await keeping;
    out.has_log = self->memory.has_log();
    co_return out;
}

/// Asks for room for the next attempt.
SKEIN_INLINE void head::state::begin_attempt(detail::submitted_job& job) {
    auto drawn = on_loop.random().next();
    while (drawn == 0 || drivers.contains(drawn)) drawn = on_loop.random().next();
    ++job.attempt;
    job.rank_nodes.clear();
    job.told.clear();
    job.lease_of = drawn;
    job.next_line = 1;
    job.lines_before = job.said.total();
    job.begins[job.attempt] = job.lines_before + 1;
    if (job.begins.size() > detail::most_known_attempts) job.begins.erase(job.begins.begin());
    job.exit_code = -1;
    job.signal = 0;
    jobs.change(job, job_state::pending, "");
    auto& d = driver_of(drawn);
    d.attempt_of = job.what.id;
    d.hello.name = "job " + job.what.id;
    d.away_until = time_point::max(); // it has no driver that could be away
    schedule.set_weight(d.id(), 1);
    want(d, {detail::entry_lease, job.what.demand, job.what.label, false, {}, {}});
}

/// Its node has just been found. It hears of it when the log says where it is: a head that did not
/// know that would start the same attempt again.
SKEIN_INLINE void head::state::start_entry(const detail::head_lease& l) {
    writing.spawn(order_entry(this, l.tag, entry_order(l)));
}

SKEIN_INLINE task<void> head::state::order_entry(state* self, std::uint64_t tag,
                                                 start_worker_order order) {
    auto keeping = as_result(self->memory.kept());
    const auto kept = co_await keeping;
    const auto found = self->by_tag.find(tag);
    if (!kept || found == self->by_tag.end()) co_return; // the attempt is over
    auto& l = *found->second;
    if (l.state != detail::lease_state::granted) co_return;
    l.is_ordered = true;
    l.at->session->tell(std::move(order));
}

/// What a node is told to start.
SKEIN_INLINE start_worker_order head::state::entry_order(const detail::head_lease& l) {
    const auto job = jobs.called(l.of->attempt_of);
    job->node = l.at->name;
    job->placed_on = l.at->incarnation;
    job->pid = 0;
    jobs.change(*job, job_state::starting, "");
    jobs.note(*job);
    start_worker_order m;
    m.lease = {l.of->incarnation, l.number};
    m.demand = sched::to_string(l.demand);
    m.gpus = l.gpus.bits();
    m.folder = job->what.folder;
    m.name = "job " + job->what.id;
    m.prints = true;
    m.variables = variables_of(*job);
    m.package = job->what.package;
    m.submitted = job->submitted;
    m.kind = entry_process{job->what.id, job->attempt, job->what.command, job->lines_before + 1,
                           job->what.grace_ms};
    return m;
}

// ---- its course ---------------------------------------------------------------------------------

SKEIN_INLINE void head::state::entry_runs(const lease_name& lease) {
    const auto d = drivers.find(lease.driver);
    if (d == drivers.end() || d->second->attempt_of.empty()) return;
    const auto job = jobs.called(d->second->attempt_of);
    if (job->state != job_state::starting || job->lease_of != lease.driver) return;
    job->started = detail::unix_ms(on_loop);
    job->not_started = 0;
    jobs.change(*job, job_state::running, "");
    jobs.note(*job);
}

/// The lease of the newest attempt has ended.
SKEIN_INLINE void head::state::entry_over(const std::string& id, bool started,
                                          const std::string& why, const ended_lease& ended) {
    const auto known = jobs.find(id);
    if (known == nullptr) return;
    auto& job = *known;
    end_ranks_of(id);
    if (is_over(job.state)) return;
    job.exit_code = ended.code;
    job.signal = ended.signal;
    if (ended.lines >= job.next_line) // the rest did not come in time
        job.said.skip(ended.lines + 1 - std::exchange(job.next_line, ended.lines + 1));
    if (job.is_stopping) return job_over(job, job.stops_as, job.stops_for);
    if (started && ended.code == 0 && !ended.was_asked)
        return job_over(job, job_state::succeeded, "");
    if (!started && ended.of_node) return put_off(job, why);
    // The order was not sent, or its node says that it never came: nobody's fault. Nor is one that
    // its agent did not start because it ends. Once it was sent, who is lost with it has begun it.
    if (job.state == job_state::starting && (job.never_began || (!started && ended.was_asked)))
        ++job.not_counted;
    job.last_lines = job.said.last(20);
    auto reason = !started          ? "it did not start: " + why
                  : ended.was_asked ? "its node's agent has ended it: " + why
                                    : why;
    if (job.attempt > job.what.retries + std::min(job.not_counted, 100U) || ended.is_lasting)
        return job_over(job, job_state::failed, std::move(reason));
    const auto pause = pause_after(job.attempt, std::chrono::seconds(1), std::chrono::seconds(60));
    job.retry_at = deadline_after(on_loop.now(), pause);
    jobs.remember_attempt(job, reason);
    if (given_up.may_run(job.lease_of, on_loop.now()))
        reason += fmt::format("; it may run there still: the next one begins when {} is back, or "
                              "when it has ended that by itself",
                              job.node);
    jobs.change(job, job_state::retrying,
                fmt::format("attempt {} of {} has failed: {}", job.attempt,
                            job.what.retries + 1 + job.not_counted, reason));
    jobs.note(job);
}

SKEIN_INLINE void head::state::job_over(detail::submitted_job& job, job_state as,
                                        std::string reason) {
    job.ended = std::max(detail::unix_ms(on_loop), job.submitted);
    job.files = {};
    jobs.change(job, as, std::move(reason));
    jobs.note(job);
    writing.spawn(jobs.show_end(jobs.called(job.what.id)));
    logging::at(how.news, "head", "job ended",
                {{"job", job.what.id}, {"state", to_string(as)}, {"why", job.reason}});
    jobs.forget_old(job);
}

/// Ends it; entry_over() comes when nothing of it runs any more.
SKEIN_INLINE void head::state::stop_submitted(detail::submitted_job& job, job_state as,
                                              std::string reason) {
    if (is_over(job.state) || job.is_stopping) return;
    job.is_stopping = true;
    job.stops_as = as;
    job.stops_for = std::move(reason);
    const auto d = drivers.find(job.lease_of);
    if (d == drivers.end()) return job_over(job, job.stops_as, job.stops_for); // between attempts
    const auto own = d->second->leases.find(detail::entry_lease);
    if (own == d->second->leases.end()) return;
    auto& l = *own->second;
    jobs.note(job);
    if (l.state == detail::lease_state::waits || !(l.is_ordered || l.at == nullptr))
        end(l, false, "it was stopped before it started");
    else if (l.state == detail::lease_state::granted)
        stop_worker(l); // that of a node which is not back yet: see hold()
    pump();
}

/// What time brings.
SKEIN_INLINE void head::state::look_at_jobs() {
    const auto now = on_loop.now();
    std::vector<detail::job_ptr> open;
    for (const auto& [id, job] : jobs.all())
        if (!is_over(job->state) && !job->is_stopping) open.push_back(job);
    const auto after = [](std::uint64_t ms) {
        return duration(
            std::chrono::milliseconds(std::min<std::uint64_t>(ms, std::uint64_t{1} << 40)));
    };
    for (const auto& job : open) {
        const bool is_put_off =
            job->state == job_state::pending && !drivers.contains(job->lease_of);
        if (is_put_off && now >= job->retry_at) {
            begin_again(*job);
        } else if (job->state == job_state::retrying && now >= job->retry_at &&
                   !given_up.may_run(job->lease_of, now)) {
            begin_attempt(*job);
            jobs.note(*job);
        } else if (job->state == job_state::pending && job->what.pending_ms != 0 &&
                   now >= deadline_after(job->pending_since, after(job->what.pending_ms))) {
            stop_submitted(*job, job_state::failed,
                           fmt::format("no node had room for it within {:.3g} s: {}",
                                       static_cast<double>(job->what.pending_ms) / 1000,
                                       jobs.info_of(*job).reason));
        } else if (job->state == job_state::running && job->what.timeout_ms != 0 &&
                   now >= deadline_after(job->since, after(job->what.timeout_ms))) {
            stop_submitted(*job, job_state::failed,
                           fmt::format("it ran for longer than its time limit of {:.3g} s",
                                       static_cast<double>(job->what.timeout_ms) / 1000));
        }
    }
}

/// Running ones are asked to end, and say what they have to say.
SKEIN_INLINE task<void> head::state::end_all_jobs(state* self) {
    const auto open_jobs = [self] {
        std::vector<detail::job_ptr> out;
        for (const auto& [id, job] : self->jobs.all())
            if (!is_over(job->state)) out.push_back(job);
        return out;
    };
    const auto open = open_jobs();
    for (const auto& job : open)
        self->stop_submitted(*job, job_state::stopped, "the cluster was stopped");
    std::uint64_t grace_ms = 0; // of the most patient one
    for (const auto& job : open)
        if (job->state == job_state::running) grace_ms = std::max(grace_ms, job->what.grace_ms);
    const auto until =
        deadline_after(self->on_loop.now(), 2 * duration(self->how.times.shutdown_grace) +
                                                std::chrono::milliseconds(grace_ms));
    const auto runs = [](const detail::job_ptr& job) { return !is_over(job->state); };
    while (self->on_loop.now() < until && std::any_of(open.begin(), open.end(), runs))
        co_await sleep_for(std::chrono::milliseconds(20));
    for (const auto& job : open_jobs()) // also what came meanwhile
        self->job_over(*job, job_state::stopped, "the cluster was stopped");
}

/// Nobody will be asked again: who follows a job has a moment to ask for its end.
SKEIN_INLINE task<void> head::state::show_all_ends(state* self) {
    self->jobs.show_all();
    const auto until = deadline_after(self->on_loop.now(), self->how.times.shutdown_grace);
    const auto hears_more = [](const session_ptr& s) { return s->hears_more; };
    while (self->on_loop.now() < until &&
           std::any_of(self->sessions.begin(), self->sessions.end(), hears_more))
        co_await sleep_for(std::chrono::milliseconds(10));
}

} // namespace skein::cluster
