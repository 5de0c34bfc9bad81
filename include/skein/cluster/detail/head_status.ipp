// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of cluster/head.hpp: what people are told of nodes and programs.

#include <skein/cluster/detail/head_state.hpp>
#include <skein/cluster/detail/submitted_job.hpp>
#include <skein/cluster/jobs.hpp>
#include <skein/core/loop.hpp>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace skein::cluster {

/// Of a driver, or of an attempt of a job.
SKEIN_INLINE job_status head::state::status_of(const detail::head_driver& d) const {
    job_status s;
    s.name = d.holder->name.empty() ? "(not back yet)" : d.holder->name;
    s.host = d.hello.host;
    s.pid = d.hello.pid;
    s.connected = d.session != nullptr;
    s.space = spaces.name_of(d.incarnation);
    for (const auto& [n, g] : d.holder->groups) { // first: leases in it wait for it
        if (g.placed || g.closing || s.waiting++ > 0) continue;
        std::string asked;
        for (const auto& b : g.bundles) asked += fmt::format(" {{{}}}", sched::to_string(b));
        s.why = fmt::format("waits for placement group {}:{}", n, asked);
    }
    for (const auto& [n, l] : d.holder->leases) {
        if (l->state != detail::lease_state::waits) {
            s.workers += s.space.empty() || n != space_server_lease;
            continue;
        }
        if (s.waiting++ == 0) s.why = leases.schedule().why(l->request);
    }
    if (d.holder->attempt_of.empty())
        if (const auto* const l = waits.held_up(*d.holder)) s.why = waits.held_text(*l);
    const auto known = jobs.find(d.holder->attempt_of);
    if (d.holder->attempt_of.empty() || known == nullptr) return s;
    const auto& job = *known;
    s.job = job.what.id;
    s.connected = true; // it has no link that could be away
    s.worlds = job.told.worlds;
    s.last_change = job.told.last_change;
    s.state = to_string(job.state);
    for (char& c : s.state) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    if (job.state != job_state::running && job.state != job_state::starting) return s;
    s.host = job.node;
    s.pid = job.pid;
    s.workers = 0; // the entry process is none
    return s;
}

/// Drivers that nobody submitted, and jobs that wait or run, each with all that came out of it.
SKEIN_INLINE std::vector<job_status> head::state::programs() const {
    std::vector<job_status> out;
    std::map<std::string, std::size_t> by_job;
    for (const auto& [number, d] : drivers) {
        if (d->holder->attempt_of.empty()) continue;
        by_job[d->holder->attempt_of] = out.size();
        out.push_back(status_of(*d));
    }
    for (const auto& [number, d] : drivers) {
        if (!d->holder->attempt_of.empty()) continue;
        auto one = status_of(*d);
        const auto found = by_job.find(d->hello.job);
        if (found == by_job.end() || !one.space.empty()) {
            out.push_back(std::move(one));
            continue;
        }
        auto& of_job = out[found->second];
        of_job.program = one.name;
        of_job.workers += one.workers;
        if (one.waiting != 0 && of_job.waiting == 0) of_job.why = std::move(one.why);
        of_job.waiting += one.waiting;
    }
    return out;
}

// ---- for who is on the head's loop --------------------------------------------------------------

SKEIN_INLINE std::map<std::string, node_usage> head::usage() const { return state_->loads.usage(); }
SKEIN_INLINE load_curve head::usage_since(const std::string& node, std::int64_t unix_s,
                                          std::size_t most) const {
    return state_->loads.since(node, unix_s, most);
}
SKEIN_INLINE std::map<std::string, std::vector<metric_family>> head::numbers() const {
    return state_->loads.numbers();
}
SKEIN_INLINE std::uint64_t head::usage_changes() const noexcept { return state_->loads.changes(); }
SKEIN_INLINE head_counts head::counts() const {
    head_counts out;
    out.calls = state_->calls_of_gone;
    const auto add = [](call_counts& to, const call_counts& what) {
        to.submitted += what.submitted;
        to.done += what.done;
        to.failed += what.failed;
    };
    for (const auto& [number, d] : state_->drivers) {
        add(out.calls, d->calls);
        if (d->holder->attempt_of.empty()) add(out.by_program[d->holder->name], d->calls);
        for (const auto& [n, l] : d->holder->leases) switch (l->state) {
            case detail::lease_state::waits: ++out.leases_waiting; break;
            case detail::lease_state::granted: ++out.leases_granted; break;
            case detail::lease_state::expected: ++out.leases_expected; break;
            case detail::lease_state::stopping: ++out.leases_stopping; break;
            }
    }
    for (const auto& s : state_->sessions)
        ++(s->node != nullptr     ? out.node_links
           : s->driver != nullptr ? out.driver_links
                                  : out.other_links);
    return out;
}
SKEIN_INLINE std::uint64_t head::node_changes() const noexcept {
    return state_->leases.changes() + state_->nodes.changes();
}

SKEIN_INLINE cluster_status head::state::status(bool past) const {
    cluster_status out;
    out.missing = memory.missing();
    if (past) out.past = memory.past_drivers();
    out.state = memory.folder();
    out.trouble = memory.trouble();
    out.generation = memory.generation();
    out.runs = how.runs;
    out.lost_after_ms = nodes.lost_after_ms();
    out.address = to_string(door.local());
    out.host = how.host;
    out.pid = how.pid;
    out.up_ms =
        std::chrono::duration_cast<std::chrono::milliseconds>(on_loop.now() - since).count();
    std::map<std::uint64_t, sched::resources> used;
    for (const auto& p : leases.schedule().places()) used[p.id.value()] = p.used;
    for (const auto& [number, n] : nodes.all()) {
        out.nodes.push_back(nodes.status_of(*n));
        out.nodes.back().used = sched::to_string(used[number]);
    }
    std::sort(out.nodes.begin(), out.nodes.end(),
              [](const auto& a, const auto& b) { return a.name < b.name; });
    out.jobs = programs();
    return out;
}

} // namespace skein::cluster
