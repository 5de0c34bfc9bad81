// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of cluster/head.hpp: jobs, from their submission to their end.

#include <skein/cluster/detail/head_state.hpp>
#include <skein/cluster/detail/job_folder.hpp>
#include <skein/cluster/job_storage.hpp>
#include <skein/cluster/jobs.hpp>
#include <skein/core/log.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/printable.hpp>
#include <skein/core/random.hpp>
#include <skein/core/sleep.hpp>
#include <skein/core/timeout.hpp>
#include <skein/wire/encode.hpp>

#include <algorithm>
#include <chrono>
#include <utility>

#include <fmt/format.h>

namespace skein::cluster {

namespace detail {

inline constexpr std::uint32_t most_follow_ms = 30'000;

[[nodiscard]] inline std::int64_t unix_ms(loop& on) {
    return std::chrono::duration_cast<std::chrono::milliseconds>(on.wall()).count();
}

/// A name that may be part of a path and of an address.
inline void check_job_id(const std::string& id) {
    const auto fits = [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
               c == '-' || c == '_' || c == '.';
    };
    if (id.size() <= most_job_id && !id.empty() && id.front() != '.' && id.front() != '-' &&
        std::all_of(id.begin(), id.end(), fits))
        return;
    throw error(errc::invalid_argument,
                fmt::format("a job cannot be called \"{}\"", printable(id.substr(0, most_job_id))))
        .with_hint(
            fmt::format("letters, digits, -, _ and . (not in front), {} at most", most_job_id));
}

/// "NAME=value", and not one of those that say to a process who it is.
inline void check_variable(const std::string& text) {
    const auto split = text.find('=');
    if (split == 0 || split == text.npos || text.find('\0') != text.npos)
        throw error(errc::invalid_argument,
                    fmt::format("\"{}\" is no variable of an environment", printable(text)))
            .with_hint("as in --env NAME=value");
    const auto name = std::string_view(text).substr(0, split);
    if (name.starts_with("SKEIN_JOB") || name == "CUDA_VISIBLE_DEVICES")
        throw error(errc::invalid_argument,
                    fmt::format("{} says to a job what it has: it cannot be set", printable(name)))
            .with_hint("choose another name; gpus are asked for with --gpus");
}

inline task<void> wait_for_news(std::shared_ptr<submitted_job> job) { co_await job->news.wait(); }

} // namespace detail

// ---- what may be run ----------------------------------------------------------------------------

SKEIN_INLINE void head::state::check_request(const job_request& what) const {
    detail::check_job_id(what.id);
    if (jobs.by_id.contains(what.id))
        throw error(errc::already_exists, fmt::format("there is a job {} already", what.id))
            .with_hint(
                fmt::format("choose another id, or leave --id out: the head draws one; skein "
                            "job logs {} --follow shows that one",
                            what.id));
    if (memory.had_job(what.id))
        throw error(errc::already_exists,
                    fmt::format("there was a job {}, which was forgotten: its name does not return",
                                what.id))
            .with_hint("choose another id, or leave --id out: the head draws one");
    if (what.command.empty() || what.command.front().empty())
        throw error(errc::invalid_argument, "a job without a command");
    std::size_t bytes = 0;
    for (const auto* all : {&what.command, &what.env})
        for (const auto& text : *all) {
            bytes += text.size() + 1;
            if (text.find('\0') != text.npos)
                throw error(errc::invalid_argument, "the command of a job has a zero byte");
        }
    if (bytes > detail::most_command_bytes)
        throw error(errc::too_large,
                    fmt::format("command and environment of the job have {} bytes, at most {} are "
                                "taken",
                                bytes, detail::most_command_bytes))
            .with_hint("put them into a file of its folder");
    for (const auto& v : what.env) detail::check_variable(v);
    if (what.grace_ms > detail::most_grace_ms)
        throw error(errc::invalid_argument,
                    fmt::format("{:.4g} s from SIGTERM to the kill are too long, at most {} s are "
                                "given",
                                static_cast<double>(what.grace_ms) / 1000,
                                detail::most_grace_ms / 1000))
            .with_hint("--grace 10m");
    const auto demand = sched::parse_resources(what.demand);
    if (!demand) throw demand.error();
    if (const auto good = sched::check_demand(*demand); !good) throw good.error();
    if (what.label.size() > detail::most_label_bytes || what.label.starts_with('@'))
        throw error(errc::invalid_argument, fmt::format("no node can have the label {}",
                                                        printable(what.label.substr(0, 64))))
            .with_hint("as in --on zone=a, --on node=n1");
    for (const auto* text : {&what.package, &what.folder, &what.by})
        if (text->size() > 4096) throw error(errc::too_large, "a text of the job is too long");
    if (!what.folder.empty() && !what.folder.starts_with('/'))
        throw error(errc::invalid_argument,
                    fmt::format("the folder {} is no absolute path", printable(what.folder)));
    const auto open = std::count_if(jobs.by_id.begin(), jobs.by_id.end(),
                                    [](const auto& one) { return !is_over(one.second->state); });
    if (static_cast<std::size_t>(open) >= detail::most_open_jobs)
        throw error(errc::exhausted, fmt::format("{} jobs wait or run already", open))
            .with_hint("wait for some of them, or stop some");
}

SKEIN_INLINE head::state::job_ptr head::state::submit(job_request what, package_pin files) {
    for (const bool draws = what.id.empty();
         draws && (what.id.empty() || jobs.by_id.contains(what.id));)
        what.id = fmt::format("job_{:016x}", on_loop.random().next());
    check_request(what);
    auto job = std::make_shared<detail::submitted_job>();
    job->number = ++jobs.last_number;
    job->what = std::move(what);
    job->files = std::move(files);
    job->submitted = detail::unix_ms(on_loop);
    job->since = on_loop.now();
    jobs.by_id.emplace(job->what.id, job);
    jobs.in_order.emplace(job->number, job);
    logging::at(how.news, "head", "job submitted",
                {{"job", job->what.id},
                 {"by", job->what.by},
                 {"command", printable(job->what.command.front())}});
    begin_attempt(*job);
    note(*job);
    pump();
    return job;
}

/// It was submitted already, by who asks again because he had no answer.
SKEIN_INLINE head::state::job_ptr head::state::same_job(const submit_job& asked) const {
    const auto found = jobs.by_id.find(asked.what.id);
    if (!asked.again || found == jobs.by_id.end()) return nullptr;
    const bool is_same = wire::encode(found->second->what) == wire::encode(asked.what);
    return is_same ? found->second : nullptr;
}

SKEIN_INLINE task<submit_reply> head::state::on_submit(state* self, submit_job asked) {
    package_pin files;
    auto job = self->same_job(asked);
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
    change(job, job_state::pending, "");
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
    const auto job = jobs.by_id.at(l.of->attempt_of);
    job->node = l.at->name;
    job->placed_on = l.at->incarnation;
    job->pid = 0;
    change(*job, job_state::starting, "");
    note(*job);
    start_worker_order m;
    m.lease = {l.of->incarnation, l.number};
    m.demand = sched::to_string(l.demand);
    m.gpus = l.gpus.bits();
    m.folder = job->what.folder;
    m.name = "job " + job->what.id;
    m.prints = true;
    m.job = job->what.id;
    m.attempt = job->attempt;
    m.command = job->what.command;
    m.variables = variables_of(*job);
    m.package = job->what.package;
    m.submitted = job->submitted;
    m.first_line = job->lines_before + 1;
    m.grace_ms = job->what.grace_ms;
    return m;
}

// ---- its course ---------------------------------------------------------------------------------

SKEIN_INLINE void head::state::change(detail::submitted_job& job, job_state to,
                                      std::string reason) {
    job.state = to;
    job.reason = std::move(reason);
    job.since = on_loop.now();
    if (to == job_state::pending) job.pending_since = job.since;
    ++changes;
    if (is_over(to)) return; // see show_end()
    job.shown = to;
    job.news.wake_all();
}

/// Whoever waits for its end hears of it when no head will say anything else.
SKEIN_INLINE task<void> head::state::show_end(state* self, job_ptr job) {
    auto keeping = as_result(self->memory.kept());
    const auto kept = co_await keeping;
    if (!kept) co_return;
    job->shown = job->state;
    ++self->changes;
    job->news.wake_all();
}

SKEIN_INLINE void head::state::entry_runs(const lease_name& lease) {
    const auto d = drivers.find(lease.driver);
    if (d == drivers.end() || d->second->attempt_of.empty()) return;
    const auto job = jobs.by_id.at(d->second->attempt_of);
    if (job->state != job_state::starting || job->lease_of != lease.driver) return;
    job->started = detail::unix_ms(on_loop);
    job->not_started = 0;
    change(*job, job_state::running, "");
    note(*job);
}

/// The lease of the newest attempt has ended.
SKEIN_INLINE void head::state::entry_over(const std::string& id, bool started,
                                          const std::string& why, const ended_lease& ended) {
    const auto found = jobs.by_id.find(id);
    if (found == jobs.by_id.end()) return;
    auto& job = *found->second;
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
    const auto pause = std::min<std::uint64_t>(std::uint64_t{1} << std::min(job.attempt - 1, 6U),
                                               60); // seconds: 1, 2, 4, ... 60
    job.retry_at = deadline_after(on_loop.now(), std::chrono::seconds(pause));
    remember_attempt(job, reason);
    if (given_up.may_run(job.lease_of, on_loop.now()))
        reason += fmt::format("; it may run there still: the next one begins when {} is back, or "
                              "when it has ended that by itself",
                              job.node);
    change(job, job_state::retrying,
           fmt::format("attempt {} of {} has failed: {}", job.attempt,
                       job.what.retries + 1 + job.not_counted, reason));
    note(job);
}

SKEIN_INLINE void head::state::job_over(detail::submitted_job& job, job_state as,
                                        std::string reason) {
    job.ended = std::max(detail::unix_ms(on_loop), job.submitted);
    job.files = {};
    change(job, as, std::move(reason));
    note(job);
    writing.spawn(show_end(this, jobs.by_id.at(job.what.id)));
    logging::at(how.news, "head", "job ended",
                {{"job", job.what.id}, {"state", to_string(as)}, {"why", job.reason}});
    forget_old_jobs(job);
}

/// Too many are remembered, or too much of what they have printed: those that ended first go.
SKEIN_INLINE void head::state::forget_old_jobs(const detail::submitted_job& but) {
    std::vector<job_ptr> ended;
    std::size_t bytes = 0;
    for (const auto& [number, one] : jobs.in_order) {
        if (!is_over(one->state) || one.get() == &but) continue;
        ended.push_back(one);
        bytes += one->said.bytes() + one->rows.size();
    }
    std::sort(ended.begin(), ended.end(),
              [](const job_ptr& a, const job_ptr& b) { return a->ended < b->ended; });
    for (std::size_t i = 0; i < ended.size(); ++i) {
        auto& one = *ended[i];
        if (ended.size() - i >= detail::most_ended_jobs) {
            bytes -= one.said.bytes() + one.rows.size();
            memory.forget_job(one.what.id);
            jobs.in_order.erase(one.number);
            jobs.by_id.erase(one.what.id);
        } else if (bytes > detail::most_ended_bytes) {
            bytes -= one.said.bytes() + one.rows.size();
            one.said.drop();
            one.rows = {};
        } else {
            return;
        }
    }
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
    note(job);
    if (l.state == detail::lease_state::waits || !(l.is_ordered || l.at == nullptr))
        end(l, false, "it was stopped before it started");
    else if (l.state == detail::lease_state::granted)
        stop_worker(l); // that of a node which is not back yet: see hold()
    pump();
}

/// What time brings.
SKEIN_INLINE void head::state::look_at_jobs() {
    const auto now = on_loop.now();
    std::vector<job_ptr> open;
    for (const auto& [id, job] : jobs.by_id)
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
            note(*job);
        } else if (job->state == job_state::pending && job->what.pending_ms != 0 &&
                   now >= deadline_after(job->pending_since, after(job->what.pending_ms))) {
            stop_submitted(*job, job_state::failed,
                           fmt::format("no node had room for it within {:.3g} s: {}",
                                       static_cast<double>(job->what.pending_ms) / 1000,
                                       info_of(*job).reason));
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
        std::vector<job_ptr> out;
        for (const auto& [id, job] : self->jobs.by_id)
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
    const auto runs = [](const job_ptr& job) { return !is_over(job->state); };
    while (self->on_loop.now() < until && std::any_of(open.begin(), open.end(), runs))
        co_await sleep_for(std::chrono::milliseconds(20));
    for (const auto& job : open_jobs()) // also what came meanwhile
        self->job_over(*job, job_state::stopped, "the cluster was stopped");
}

/// Nobody will be asked again: who follows a job has a moment to ask for its end.
SKEIN_INLINE task<void> head::state::show_all_ends(state* self) {
    for (const auto& [id, job] : self->jobs.by_id) {
        job->shown = job->state;
        job->news.wake_all();
    }
    const auto until = deadline_after(self->on_loop.now(), self->how.times.shutdown_grace);
    const auto hears_more = [](const session_ptr& s) { return s->hears_more; };
    while (self->on_loop.now() < until &&
           std::any_of(self->sessions.begin(), self->sessions.end(), hears_more))
        co_await sleep_for(std::chrono::milliseconds(10));
}

// ---- what it prints -----------------------------------------------------------------------------

SKEIN_INLINE void head::state::keep_lines(detail::submitted_job& job,
                                          std::vector<printed_lines> from) {
    for (auto& some : from) {
        if (some.lease != detail::entry_lease) continue;
        if (some.first > job.next_line) job.said.skip(some.first - job.next_line);
        const auto known = job.next_line > some.first ? job.next_line - some.first : 0;
        for (auto at = known; at < some.lines.size(); ++at) job.said.add(std::move(some.lines[at]));
        job.next_line = std::max(job.next_line, some.first + some.lines.size());
    }
    ++changes;
    job.news.wake_all();
}

SKEIN_INLINE job_lines head::state::lines_of(const detail::submitted_job& job,
                                             std::uint64_t from) const {
    job_lines out;
    out.now = info_of(job);
    auto some = job.said.from(std::max(from, std::uint64_t{1}), detail::most_followed);
    out.first = some.first;
    out.lines = std::move(some.lines);
    out.is_all = is_over(job.shown) && out.first + out.lines.size() > job.said.total();
    return out;
}

SKEIN_INLINE task<job_lines> head::state::follow(state* self, session_ptr by, follow_job asked) {
    const auto job = self->job_called(asked.id);
    const auto until =
        deadline_after(self->on_loop.now(),
                       std::chrono::milliseconds(std::min(asked.wait_ms, detail::most_follow_ms)));
    for (;;) {
        const auto now = self->on_loop.now();
        auto from = std::max(asked.from, std::uint64_t{1});
        // The head before may have had more lines of an attempt than this one ever heard of.
        if (asked.attempt != 0 && asked.attempt < job->attempt)
            from = std::min(from, job->lines_before + 1);
        const bool is_news = job->said.total() + 1 > from ||
                             static_cast<std::uint8_t>(job->shown) != asked.known ||
                             is_over(job->shown);
        if (is_news || now >= until) {
            auto said = self->lines_of(*job, from);
            by->hears_more = !said.is_all;
            co_return said;
        }
        auto waiting = as_result(with_timeout(detail::wait_for_news(job), until - now));
        const auto woken = co_await waiting;
        if (!woken && woken.error().code() != errc::timeout) throw woken.error();
    }
}

} // namespace skein::cluster
