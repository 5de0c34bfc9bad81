// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of cluster/head.hpp: jobs over a head's own end.

#include <skein/cluster/detail/head_state.hpp>
#include <skein/cluster/jobs.hpp>
#include <skein/core/loop.hpp>

#include <algorithm>
#include <memory>
#include <utility>

namespace skein::cluster {

/// Into the log, as it is now.
SKEIN_INLINE void head::state::note(const detail::submitted_job& job) {
    detail::job_record r;
    r.number = job.number;
    r.what = job.what;
    r.state = static_cast<std::uint8_t>(job.state);
    r.reason = job.reason;
    r.node = job.node;
    r.attempt = job.attempt;
    r.lease_of = job.lease_of;
    r.exit_code = job.exit_code;
    r.signal = job.signal;
    r.submitted = job.submitted;
    r.started = job.started;
    r.ended = job.ended;
    r.last_lines = job.last_lines;
    const bool has_ended = is_over(job.state) || job.state == job_state::retrying;
    r.lines_before = has_ended ? job.said.total() : job.lines_before;
    r.not_counted = job.not_counted;
    r.is_stopping = job.is_stopping;
    r.stops_as = static_cast<std::uint8_t>(job.stops_as);
    r.stops_for = job.stops_for;
    r.placed_on = job.placed_on;
    r.may_run = job.state == job_state::retrying && given_up.may_run(job.lease_of, on_loop.now());
    memory.job_is(std::move(r));
}

namespace detail {

/// What the log says of a job.
[[nodiscard]] inline std::shared_ptr<submitted_job> job_of_record(const job_record& r) {
    auto job = std::make_shared<submitted_job>();
    job->number = r.number;
    job->what = r.what;
    job->state = r.state > static_cast<std::uint8_t>(job_state::stopped)
                     ? job_state::running
                     : static_cast<job_state>(r.state);
    job->reason = r.reason;
    job->node = r.node;
    job->attempt = r.attempt;
    job->lease_of = r.lease_of;
    job->exit_code = r.exit_code;
    job->signal = r.signal;
    job->submitted = r.submitted;
    job->started = r.started;
    job->ended = r.ended;
    job->last_lines = r.last_lines;
    job->lines_before = r.lines_before;
    job->shown = job->state;
    job->not_counted = r.not_counted;
    job->is_stopping = r.is_stopping;
    job->stops_as = r.stops_as == static_cast<std::uint8_t>(job_state::failed) ? job_state::failed
                                                                               : job_state::stopped;
    job->stops_for = r.stops_for;
    job->placed_on = r.placed_on;
    job->said.begin_at(r.lines_before);
    return job;
}

} // namespace detail

/// Those that wait begin anew; those that ran are expected with their nodes.
SKEIN_INLINE void head::state::remember_jobs() {
    for (const auto& [id, r] : memory.jobs()) {
        const auto job = detail::job_of_record(r);
        if (r.may_run && job->state == job_state::retrying)
            given_up.leave(r.lease_of,
                           {r.placed_on, r.node, fence(detail::agents_wait_ms, r.what),
                            deadline_after(on_loop.now(), fence(detail::agents_wait_ms, r.what))});
        job->since = job->pending_since = on_loop.now();
        job->retry_at = on_loop.now();
        if (!is_over(job->state)) job->files = packages.hold_if_here(r.what.package);
        jobs.last_number = std::max(jobs.last_number, r.number);
        jobs.by_id.emplace(id, job);
        jobs.in_order.emplace(r.number, job);
    }
    for (const auto& [id, one] : jobs.by_id) {
        auto& job = *one;
        if (job.state == job_state::pending) {
            --job.attempt; // it has not begun
            begin_attempt(job);
        }
        if (job.state != job_state::starting && job.state != job_state::running) continue;
        job.begins[job.attempt] = job.lines_before + 1;
        const auto demand = sched::parse_resources(job.what.demand);
        if (!demand) continue;
        auto& d = driver_of(job.lease_of);
        d.attempt_of = job.what.id;
        d.hello.name = "job " + job.what.id;
        d.away_until = time_point::max();
        schedule.set_weight(d.id(), 1);
        auto& l = add_lease(d, detail::entry_lease, *demand);
        l.label = job.what.label;
        l.state = detail::lease_state::expected;
        l.expected_node = unknown_node;
        l.is_ordered = true; // as far as one knows
        l.until = deadline_after(
            on_loop.now(),
            std::max<duration>(how.times.start_timeout, fence(detail::agents_wait_ms, job.what)));
        spaces.had_head();
    }
}

/// A node holds the entry process of a job. False: of none that is expected.
SKEIN_INLINE bool head::state::claim_entry(const held_lease& held) {
    const auto found = jobs.by_id.find(held.job);
    given_up.is_back(held.lease.driver); // it is told to end there
    return found != jobs.by_id.end() && found->second->lease_of == held.lease.driver &&
           !is_over(found->second->state) && found->second->state != job_state::retrying;
}

} // namespace skein::cluster
