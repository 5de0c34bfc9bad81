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
        jobs.restore(job);
    }
    for (const auto& [id, one] : jobs.all()) {
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
    const auto job = jobs.find(held.job);
    given_up.is_back(held.lease.driver); // it is told to end there
    return job != nullptr && job->lease_of == held.lease.driver && !is_over(job->state) &&
           job->state != job_state::retrying;
}

} // namespace skein::cluster
