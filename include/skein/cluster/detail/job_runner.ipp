// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of cluster/detail/job_runner.hpp: from the submission of a job to its end.

#include <skein/cluster/detail/hello_checks.hpp>
#include <skein/cluster/job_progress.hpp>
#include <skein/cluster/jobs.hpp>
#include <skein/core/awaitable.hpp>
#include <skein/core/backoff.hpp>
#include <skein/core/printable.hpp>
#include <skein/core/random.hpp>
#include <skein/core/read_number.hpp>
#include <skein/core/sleep.hpp>

#include <algorithm>
#include <chrono>
#include <optional>
#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace skein::cluster::detail {

inline constexpr int most_known_ranks = 4096;

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

SKEIN_INLINE job_runner::job_runner(loop& on, const parts& below, attempt_events& events,
                                    job_runner_options options)
    : loop_(on), book_(below.book), memory_(below.memory), packages_(below.packages),
      given_up_(below.given_up), leases_(below.leases), events_(events),
      options_(std::move(options)) {}

SKEIN_INLINE void job_runner::serve(net::request_service& service) {
    service.on<submit_job, submit_reply>(
        [this](submit_job m, const net::caller& who) -> task<submit_reply> {
            check_version(m.version, who.peer);
            return take(this, std::move(m));
        });
    service.on<stop_job, stop_job_reply>([this](stop_job m, const net::caller& who) {
        check_version(m.version, who.peer);
        return on_stop(this, std::move(m), who.peer);
    });
}

SKEIN_INLINE job_ptr job_runner::add(job_request what, package_pin files) {
    auto job = book_.add(std::move(what), std::move(files));
    logging::at(options_.news, "head", "job submitted",
                {{"job", job->what.id},
                 {"by", job->what.by},
                 {"command", printable(job->what.command.front())}});
    begin(*job);
    book_.note(*job);
    leases_.pump();
    return job;
}

SKEIN_INLINE task<submit_reply> job_runner::take(job_runner* self, submit_job asked) {
    package_pin files;
    auto job = self->book_.same(asked);
    if (job == nullptr) {
        auto holding = self->packages_.hold(asked.what.package);
        files = co_await holding;
        job = self->add(std::move(asked.what), std::move(files));
    }
    submit_reply out;
    out.id = job->what.id;
    auto keeping = self->memory_.kept(); // who is told that it is taken may rely on it
    out.not_durable = co_await keeping;
    out.has_log = self->memory_.has_log();
    co_return out;
}

SKEIN_INLINE task<stop_job_reply> job_runner::on_stop(job_runner* self, stop_job asked,
                                                      std::string peer) {
    const auto job = self->book_.called(asked.id);
    stop_job_reply out;
    if (!asked.forget) {
        self->stop(*job, job_state::stopped, "stopped by " + peer);
        auto written = self->memory_.kept(); // the next head stops it, too
        (void)co_await written;
        out.now = self->book_.info_of(*job);
        co_return out;
    }
    out.now = self->book_.info_of(*job);
    self->book_.forget(asked.id);
    auto keeping = self->memory_.kept();
    (void)co_await keeping;
    co_return out;
}

// ---- attempts -----------------------------------------------------------------------------------

/// Asks for room for the next attempt.
SKEIN_INLINE void job_runner::begin(submitted_job& job) {
    auto drawn = loop_.random().next();
    while (drawn == 0 || leases_.holders().contains(drawn)) drawn = loop_.random().next();
    ++job.attempt;
    job.rank_nodes.clear();
    job.told.hear({});
    job.lease_of = drawn;
    job.next_line = 1;
    job.lines_before = job.said.total();
    job.begins[job.attempt] = job.lines_before + 1;
    if (job.begins.size() > most_known_attempts) job.begins.erase(job.begins.begin());
    job.exit_code = -1;
    job.signal = 0;
    book_.change(job, job_state::pending, "");
    leases_.want(events_.make_attempt(drawn, job.what.id),
                 {entry_lease, job.what.demand, job.what.label, false, {}, {}});
}

/// The same attempt: none of it has begun.
SKEIN_INLINE void job_runner::begin_again(submitted_job& job) {
    const auto waits_since = job.pending_since;
    --job.attempt;
    begin(job);
    job.pending_since = waits_since;
    book_.note(job);
}

/// Its node could not start it for a reason of its own: that was no attempt. Once each node may
/// have been tried it waits, 1, 2, 4, up to 60 seconds: what looks like the node's fault may be its
/// own, and each try costs the others a node for a second.
SKEIN_INLINE void job_runner::put_off(submitted_job& job, const std::string& why) {
    const auto nodes = leases_.nodes().size();
    if (++job.not_started <= nodes) return begin_again(job);
    const auto waits_since = job.pending_since;
    const auto tries = std::min<std::uint64_t>(job.not_started - nodes - 1, 6);
    const auto pause = std::min<std::uint64_t>(std::uint64_t{1} << tries, 60);
    job.retry_at = deadline_after(loop_.now(), std::chrono::seconds(pause));
    book_.change(job, job_state::pending, fmt::format("{} could not start it: {}", job.node, why));
    job.pending_since = waits_since;
    book_.note(job);
}

/// Its node hears of it when the log says where it is: a head that did not know that would start the
/// same attempt again.
SKEIN_INLINE void job_runner::placed(const std::string& id, const entry_place& place) {
    const auto job = book_.called(id);
    job->node = place.node_name;
    job->placed_on = place.node;
    job->pid = 0;
    book_.change(*job, job_state::starting, "");
    book_.note(*job);
    writing_.spawn(order_when_kept(this, place.lease.driver, order_at(place, *job)));
}

SKEIN_INLINE task<void> job_runner::order_when_kept(job_runner* self, std::uint64_t attempt,
                                                    start_worker_order order) {
    auto keeping = as_result(self->memory_.kept());
    const auto kept = co_await keeping;
    auto* const l = self->leases_.find({attempt, entry_lease});
    if (!kept || l == nullptr || l->state != lease_state::granted) co_return; // it is over
    l->is_ordered = true;
    self->events_.send_order(l->at->incarnation, order);
}

/// What a node is told to start.
SKEIN_INLINE start_worker_order job_runner::order_at(const entry_place& place,
                                                     const submitted_job& job) {
    start_worker_order m;
    m.lease = place.lease;
    m.demand = place.demand;
    m.gpus = place.gpus;
    m.folder = job.what.folder;
    m.name = "job " + job.what.id;
    m.prints = true;
    m.variables = variables_of(job);
    m.package = job.what.package;
    m.submitted = job.submitted;
    m.kind = entry_process{job.what.id, job.attempt, job.what.command, job.lines_before + 1,
                           job.what.grace_ms};
    return m;
}

SKEIN_INLINE void job_runner::runs(const std::string& id, std::uint64_t attempt, std::int64_t pid) {
    const auto job = book_.called(id);
    job->pid = pid;
    if (job->state != job_state::starting || job->lease_of != attempt) return;
    job->started = unix_ms(loop_);
    job->not_started = 0;
    book_.change(*job, job_state::running, "");
    book_.note(*job);
}

SKEIN_INLINE void job_runner::ended(const std::string& id, bool started, const std::string& why,
                                    const ended_lease& end, bool is_ordered) {
    const auto known = book_.find(id);
    if (known == nullptr) return;
    auto& job = *known;
    end_ranks_of(id);
    if (is_over(job.state)) return;
    job.exit_code = end.code;
    job.signal = end.signal;
    if (end.lines >= job.next_line) // the rest did not come in time
        job.said.skip(end.lines + 1 - std::exchange(job.next_line, end.lines + 1));
    const bool was_moving = is_moving(job);
    if (job.is_stopping && !was_moving) return over(job, job.stops_as, job.stops_for);
    job.is_stopping = false;
    if (started && end.code == 0 && !end.was_asked) return over(job, job_state::succeeded, "");
    if (was_moving && !started && (!is_ordered || end.was_asked)) return begin_again(job);
    // It was asked, or its node has gone: it did not end by itself.
    if (was_moving && (end.was_asked || (end.code < 0 && end.signal == 0))) return moved(job);
    if (!started && end.of_node) return put_off(job, why);
    // The order was not sent, or its node says that it never came: nobody's fault. Nor is one that
    // its agent did not start because it ends. Once it was sent, who is lost with it has begun it.
    if (job.state == job_state::starting && (!is_ordered || (!started && end.was_asked)))
        ++job.not_counted;
    job.last_lines = job.said.last(20);
    auto reason = !started        ? "it did not start: " + why
                  : end.was_asked ? "its node's agent has ended it: " + why
                                  : why;
    if (job.attempt > job.what.retries + std::min(job.not_counted, 100U) || end.is_lasting)
        return over(job, job_state::failed, std::move(reason));
    const auto pause = pause_after(job.attempt, std::chrono::seconds(1), std::chrono::seconds(60));
    job.retry_at = deadline_after(loop_.now(), pause);
    book_.remember_attempt(job, reason);
    if (given_up_.may_run(job.lease_of, loop_.now()))
        reason += fmt::format("; it may run there still: the next one begins when {} is back, or "
                              "when it has ended that by itself",
                              job.node);
    book_.change(job, job_state::retrying,
                 fmt::format("attempt {} of {} has failed: {}", job.attempt,
                             job.what.retries + 1 + job.not_counted, reason));
    book_.note(job);
}

SKEIN_INLINE void job_runner::over(submitted_job& job, job_state as, std::string reason) {
    job.ended = std::max(unix_ms(loop_), job.submitted);
    job.files = {};
    book_.change(job, as, std::move(reason));
    book_.note(job);
    writing_.spawn(book_.show_end(book_.called(job.what.id)));
    logging::at(options_.news, "head", "job ended",
                {{"job", job.what.id}, {"state", to_string(as)}, {"why", job.reason}});
    book_.forget_old(job);
}

SKEIN_INLINE void job_runner::stop(submitted_job& job, job_state as, std::string reason) {
    if (is_over(job.state) || (job.is_stopping && !is_moving(job))) return;
    job.is_stopping = true;
    job.stops_as = as;
    job.stops_for = std::move(reason);
    if (!leases_.holders().contains(job.lease_of)) // between attempts
        return over(job, job.stops_as, job.stops_for);
    book_.note(job);
    stop_entry(job.lease_of);
}

SKEIN_INLINE void job_runner::move(submitted_job& job, std::string why) {
    if (is_over(job.state) || job.is_stopping) return;
    if (leases_.find({job.lease_of, entry_lease}) == nullptr) return; // between attempts
    job.is_stopping = true;
    job.stops_as = job_state::retrying;
    job.stops_for = std::move(why);
    book_.change(job, job.state, job.reason); // who follows it hears of it
    book_.note(job);
    writing_.spawn(end_when_kept(this, job.lease_of));
}

/// A head that did not know why it has ended would count it.
SKEIN_INLINE task<void> job_runner::end_when_kept(job_runner* self, std::uint64_t attempt) {
    auto keeping = as_result(self->memory_.kept());
    const auto kept = co_await keeping;
    if (kept) self->stop_entry(attempt);
}

/// Its attempt has left its node. One of which nothing has begun is the same one again.
SKEIN_INLINE void job_runner::moved(submitted_job& job) {
    const auto why = std::exchange(job.stops_for, {});
    ++job.not_counted;
    job.last_lines = job.said.last(20);
    job.retry_at = loop_.now();
    book_.remember_attempt(job, why);
    book_.change(job, job_state::retrying,
                 fmt::format("attempt {} has left {}: {}", job.attempt, job.node, why));
    if (!given_up_.may_run(job.lease_of, loop_.now())) begin(job);
    book_.note(job);
}

SKEIN_INLINE void job_runner::stop_entry(std::uint64_t attempt) {
    auto* const l = leases_.find({attempt, entry_lease});
    if (l == nullptr) return;
    if (l->state == lease_state::waits || !(l->is_ordered || l->at == nullptr))
        leases_.end(*l, false, "it was stopped before it started");
    else if (l->state == lease_state::granted)
        leases_.stop(*l); // that of a node which is not back yet: when it comes
    leases_.pump();
}

/// Their supervisor has ended with the job, or lives no longer than its agent lets it: they neither
/// save nor hold their nodes for the next attempt.
SKEIN_INLINE void job_runner::end_ranks_of(const std::string& job) {
    for (const auto& [incarnation, d] : leases_.holders()) {
        if (d->job != job || !d->has_ranks) continue;
        std::vector<std::uint64_t> all;
        for (const auto& [number, l] : d->leases) all.push_back(number);
        for (const auto number : all) leases_.give_back(*d, number, true);
    }
}

SKEIN_INLINE bool job_runner::claims(const held_lease& held) {
    const auto job = book_.find(held.job);
    given_up_.is_back(held.lease.driver); // it is told to end there
    return job != nullptr && job->lease_of == held.lease.driver && !is_over(job->state) &&
           job->state != job_state::retrying;
}

SKEIN_INLINE void job_runner::rank_placed(const std::string& id, const rank_order& rank,
                                          const std::string& node) {
    const auto job = book_.find(id);
    const auto number = rank_of(rank);
    if (job != nullptr && number >= 0) job->rank_nodes[number] = node;
}

// ---- what time brings ---------------------------------------------------------------------------

SKEIN_INLINE std::vector<job_ptr> job_runner::open_jobs() const {
    std::vector<job_ptr> out;
    for (const auto& [id, job] : book_.all())
        if (!is_over(job->state)) out.push_back(job);
    return out;
}

SKEIN_INLINE void job_runner::look() {
    const auto now = loop_.now();
    const auto after = [](std::uint64_t ms) {
        return duration(
            std::chrono::milliseconds(std::min<std::uint64_t>(ms, std::uint64_t{1} << 40)));
    };
    auto open = open_jobs();
    std::erase_if(open, [](const job_ptr& job) { return job->is_stopping; });
    for (const auto& job : open) {
        const bool is_put_off =
            job->state == job_state::pending && !leases_.holders().contains(job->lease_of);
        if (is_put_off && now >= job->retry_at) {
            begin_again(*job);
        } else if (job->state == job_state::retrying && now >= job->retry_at &&
                   !given_up_.may_run(job->lease_of, now)) {
            begin(*job);
            book_.note(*job);
        } else if (job->state == job_state::pending && job->what.pending_ms != 0 &&
                   now >= deadline_after(job->pending_since, after(job->what.pending_ms))) {
            stop(*job, job_state::failed,
                 fmt::format("no node had room for it within {:.3g} s: {}",
                             static_cast<double>(job->what.pending_ms) / 1000,
                             book_.info_of(*job).reason));
        } else if (job->state == job_state::running && job->what.timeout_ms != 0 &&
                   now >= deadline_after(job->since, after(job->what.timeout_ms))) {
            stop(*job, job_state::failed,
                 fmt::format("it ran for longer than its time limit of {:.3g} s",
                             static_cast<double>(job->what.timeout_ms) / 1000));
        }
    }
}

SKEIN_INLINE task<void> job_runner::end_each(job_runner* self) {
    const auto open = self->open_jobs();
    for (const auto& job : open) self->stop(*job, job_state::stopped, "the cluster was stopped");
    std::uint64_t grace_ms = 0; // of the most patient one
    for (const auto& job : open)
        if (job->state == job_state::running) grace_ms = std::max(grace_ms, job->what.grace_ms);
    const auto until =
        deadline_after(self->loop_.now(), 2 * duration(self->options_.times.shutdown_grace) +
                                              std::chrono::milliseconds(grace_ms));
    const auto runs = [](const job_ptr& job) { return !is_over(job->state); };
    while (self->loop_.now() < until && std::any_of(open.begin(), open.end(), runs))
        co_await sleep_for(std::chrono::milliseconds(20));
    for (const auto& job : self->open_jobs()) // also what came meanwhile
        self->over(*job, job_state::stopped, "the cluster was stopped");
}

SKEIN_INLINE task<void> job_runner::show_each_end(job_runner* self) {
    self->book_.show_all();
    const auto until = deadline_after(self->loop_.now(), self->options_.times.shutdown_grace);
    while (self->loop_.now() < until && self->events_.has_followers())
        co_await sleep_for(std::chrono::milliseconds(10));
}

// ---- over a head's own end ----------------------------------------------------------------------

SKEIN_INLINE bool job_runner::remember() {
    bool is_any_expected = false;
    for (const auto& [id, r] : memory_.jobs()) {
        const auto job = job_of_record(r);
        if (r.may_run && job->state == job_state::retrying)
            given_up_.leave(r.lease_of,
                            {r.placed_on, r.node, fence(agents_wait_ms, r.what),
                             deadline_after(loop_.now(), fence(agents_wait_ms, r.what))});
        job->since = job->pending_since = loop_.now();
        job->retry_at = loop_.now();
        if (!is_over(job->state)) job->files = packages_.hold_if_here(r.what.package);
        book_.restore(job);
    }
    for (const auto& [id, one] : book_.all()) {
        auto& job = *one;
        if (job.state == job_state::pending) {
            --job.attempt; // it has not begun
            begin(job);
        }
        if (job.state != job_state::starting && job.state != job_state::running) continue;
        job.begins[job.attempt] = job.lines_before + 1;
        const auto demand = sched::parse_resources(job.what.demand);
        if (!demand) continue;
        auto& l = leases_.add(events_.make_attempt(job.lease_of, id), entry_lease, *demand);
        l.label = job.what.label;
        l.state = lease_state::expected;
        l.expected_node = unknown_node;
        l.is_ordered = true; // as far as one knows
        l.until = deadline_after(loop_.now(), std::max<duration>(options_.times.start_timeout,
                                                                 fence(agents_wait_ms, job.what)));
        is_any_expected = true;
    }
    return is_any_expected;
}

SKEIN_INLINE void job_runner::leave(const lease_node& n, std::uint64_t alone_ms,
                                    time_point heard_at) {
    given_up_.is_gone(n.incarnation, heard_at);
    for (const auto& [name, l] : n.leases) {
        const auto job = book_.find(l->of->attempt_of);
        if (job == nullptr) continue;
        const auto length = fence(alone_ms, job->what);
        given_up_.leave(name.driver,
                        {n.incarnation, n.name, length, deadline_after(heard_at, length)});
    }
}

/// A node waits for a head, sees no later than the head that there is none, and asks the attempt to
/// end before it kills it.
SKEIN_INLINE duration job_runner::fence(std::uint64_t alone_ms, const job_request& job) const {
    const auto alone = std::max<duration>(
        std::chrono::milliseconds(std::min(alone_ms, most_lost_after_ms)), options_.lost_after);
    const auto grace =
        job.grace_ms == 0
            ? duration(options_.times.shutdown_grace)
            : duration(std::chrono::milliseconds(std::min(job.grace_ms, most_grace_ms)));
    constexpr auto looks = std::chrono::seconds(3); // its own, and of what the attempt has started
    return alone + 2 * duration(options_.times.dead_after) + grace + looks;
}

// ---- what is told -------------------------------------------------------------------------------

SKEIN_INLINE std::string job_runner::runs_of(const submitted_job* job) const {
    if (options_.runs.empty() || job == nullptr) return options_.runs;
    return fmt::format("{}/{}-{:x}", options_.runs, job->what.id, job->submitted);
}

SKEIN_INLINE std::vector<std::string> job_runner::variables_of(const submitted_job& job) const {
    auto all = job.what.env;
    const auto names_runs = [](const std::string& v) {
        return v.starts_with(std::string(runs_variable) + "=");
    };
    if (const auto runs = runs_of(&job);
        !runs.empty() && std::none_of(all.begin(), all.end(), names_runs))
        all.push_back(fmt::format("{}={}", runs_variable, runs));
    return all;
}

SKEIN_INLINE job_course job_runner::course_of(const submitted_job& job) const {
    job_course out;
    out.now = progress_of(job.rows);
    out.now.folder = job.folder;
    add_told(out.now, job.told.text);
    if (!out.now.steps_per_s && job.state == job_state::running)
        out.now.steps_per_s = job.pace.steps_per_s();
    for (const auto& [rank, node] : job.rank_nodes) out.ranks.push_back({rank, node});
    if (out.ranks.empty())
        for (const auto& [incarnation, d] : leases_.holders())
            if (d->job == job.what.id && d->has_ranks)
                for (const auto& [number, l] : d->leases)
                    if (l->at != nullptr && out.ranks.size() < most_known_ranks)
                        out.ranks.push_back({-1, l->at->name});
    out.attempts.assign(job.failed.begin(), job.failed.end());
    return out;
}

} // namespace skein::cluster::detail
