// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of cluster/detail/job_book.hpp: what comes, goes, and becomes of it. See job_answers.ipp.

#include <skein/cluster/detail/job_folder.hpp>
#include <skein/cluster/detail/result_files.hpp>
#include <skein/cluster/jobs.hpp>
#include <skein/core/awaitable.hpp>
#include <skein/core/bytes.hpp>
#include <skein/core/error.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/printable.hpp>
#include <skein/core/random.hpp>
#include <skein/sched/resources.hpp>
#include <skein/wire/encode.hpp>

#include <algorithm>
#include <chrono>
#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace skein::cluster::detail {

SKEIN_INLINE std::int64_t unix_ms(loop& on) {
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

inline void check_results(const std::string& patterns) {
    const auto all = parts_of(patterns, '\n');
    if (all.size() > most_result_patterns)
        throw error(errc::invalid_argument,
                    fmt::format("{} patterns of results, at most {} are taken", all.size(),
                                most_result_patterns));
    for (const auto& one : all)
        if (const auto good = check_result_pattern(one); !good) throw good.error();
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
    if (name == results_variable) check_results(text.substr(split + 1));
}

SKEIN_INLINE void job_book::check(const job_request& what) const {
    check_job_id(what.id);
    if (by_id_.contains(what.id))
        throw error(errc::already_exists, fmt::format("there is a job {} already", what.id))
            .with_hint(
                fmt::format("choose another id, or leave --id out: the head draws one; skein "
                            "job logs {} --follow shows that one",
                            what.id));
    if (memory_.had_job(what.id))
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
    if (bytes > most_command_bytes)
        throw error(errc::too_large,
                    fmt::format("command and environment of the job have {} bytes, at most {} are "
                                "taken",
                                bytes, most_command_bytes))
            .with_hint("put them into a file of its folder");
    for (const auto& v : what.env) check_variable(v);
    if (what.grace_ms > most_grace_ms)
        throw error(errc::invalid_argument,
                    fmt::format("{:.4g} s from SIGTERM to the kill are too long, at most {} s are "
                                "given",
                                static_cast<double>(what.grace_ms) / 1000, most_grace_ms / 1000))
            .with_hint("--grace 10m");
    const auto demand = sched::parse_resources(what.demand);
    if (!demand) throw demand.error();
    if (const auto good = sched::check_demand(*demand); !good) throw good.error();
    if (what.label.size() > most_label_bytes || what.label.starts_with('@'))
        throw error(errc::invalid_argument, fmt::format("no node can have the label {}",
                                                        printable(what.label.substr(0, 64))))
            .with_hint("as in --on zone=a, --on node=n1");
    for (const auto* text : {&what.package, &what.folder, &what.by})
        if (text->size() > 4096) throw error(errc::too_large, "a text of the job is too long");
    if (!what.folder.empty() && !what.folder.starts_with('/'))
        throw error(errc::invalid_argument,
                    fmt::format("the folder {} is no absolute path", printable(what.folder)));
    const auto open = std::count_if(by_id_.begin(), by_id_.end(),
                                    [](const auto& one) { return !is_over(one.second->state); });
    if (static_cast<std::size_t>(open) >= most_open_jobs)
        throw error(errc::exhausted, fmt::format("{} jobs wait or run already", open))
            .with_hint("wait for some of them, or stop some");
}

SKEIN_INLINE job_ptr job_book::add(job_request what, package_pin files) {
    for (const bool draws = what.id.empty();
         draws && (what.id.empty() || by_id_.contains(what.id));)
        what.id = fmt::format("job_{:016x}", loop_.random().next());
    check(what);
    auto job = std::make_shared<submitted_job>();
    job->number = ++last_number_;
    job->what = std::move(what);
    job->files = std::move(files);
    job->submitted = unix_ms(loop_);
    job->since = loop_.now();
    by_id_.emplace(job->what.id, job);
    in_order_.emplace(job->number, job);
    return job;
}

SKEIN_INLINE void job_book::restore(const job_ptr& job) {
    last_number_ = std::max(last_number_, job->number);
    by_id_.emplace(job->what.id, job);
    in_order_.emplace(job->number, job);
}

/// It was submitted already, by who asks again because he had no answer.
SKEIN_INLINE job_ptr job_book::same(const submit_job& asked) const {
    const auto found = by_id_.find(asked.what.id);
    if (!asked.again || found == by_id_.end()) return nullptr;
    const bool is_same = wire::encode(found->second->what) == wire::encode(asked.what);
    return is_same ? found->second : nullptr;
}

SKEIN_INLINE job_ptr job_book::find(const std::string& id) const {
    const auto found = by_id_.find(id);
    return found == by_id_.end() ? nullptr : found->second;
}

SKEIN_INLINE job_ptr job_book::called(const std::string& id) const {
    const auto found = by_id_.find(id);
    if (found != by_id_.end()) return found->second;
    throw error(errc::not_found,
                fmt::format("there is no job \"{}\"", printable(id.substr(0, most_job_id))))
        .with_hint("skein job list shows those that there are");
}

SKEIN_INLINE void job_book::forget(const std::string& id) {
    const auto job = called(id);
    if (!is_over(job->shown))
        throw error(errc::invalid_argument,
                    fmt::format("job {} is {}: it cannot be deleted", id, to_string(job->shown)))
            .with_hint("skein job stop ends it");
    memory_.forget_job(id);
    in_order_.erase(job->number);
    by_id_.erase(id);
    ++changes_;
}

/// Too many are remembered, or too much of what they have printed: those that ended first go.
SKEIN_INLINE void job_book::forget_old(const submitted_job& but) {
    std::vector<job_ptr> ended;
    std::size_t bytes = 0;
    for (const auto& [number, one] : in_order_) {
        if (!is_over(one->state) || one.get() == &but) continue;
        ended.push_back(one);
        bytes += one->said.bytes() + one->rows.size();
    }
    std::sort(ended.begin(), ended.end(),
              [](const job_ptr& a, const job_ptr& b) { return a->ended < b->ended; });
    for (std::size_t i = 0; i < ended.size(); ++i) {
        auto& one = *ended[i];
        if (ended.size() - i >= most_ended_jobs) {
            bytes -= one.said.bytes() + one.rows.size();
            memory_.forget_job(one.what.id);
            in_order_.erase(one.number);
            by_id_.erase(one.what.id);
        } else if (bytes > most_ended_bytes) {
            bytes -= one.said.bytes() + one.rows.size();
            one.said.drop();
            one.rows = {};
        } else {
            return;
        }
    }
}

// ---- what becomes of one -------------------------------------------------------------------------

SKEIN_INLINE void job_book::change(submitted_job& job, job_state to, std::string reason) {
    job.state = to;
    job.reason = std::move(reason);
    job.since = loop_.now();
    if (to == job_state::pending) job.pending_since = job.since;
    ++changes_;
    if (is_over(to)) return; // see show_end()
    job.shown = to;
    job.news.wake_all();
}

/// Whoever waits for its end hears of it when no head will say anything else.
SKEIN_INLINE task<void> job_book::show_when_kept(job_book* self, job_ptr job) {
    auto keeping = as_result(self->memory_.kept());
    const auto kept = co_await keeping;
    if (!kept) co_return;
    job->shown = job->state;
    ++self->changes_;
    job->news.wake_all();
}

SKEIN_INLINE void job_book::show_all() {
    for (const auto& [id, job] : by_id_) {
        job->shown = job->state;
        job->news.wake_all();
    }
}

/// For people: it is not in the log.
SKEIN_INLINE void job_book::remember_attempt(submitted_job& job, const std::string& reason) const {
    if (job.failed.size() >= most_past_attempts) job.failed.pop_front();
    const bool has_started = job.state == job_state::running;
    job.failed.push_back(
        {job.attempt, job.node, reason.substr(0, 1024), job.exit_code, job.signal,
         has_started ? job.started : 0,
         std::chrono::duration_cast<std::chrono::milliseconds>(loop_.wall()).count()});
}

SKEIN_INLINE void job_book::keep_lines(submitted_job& job, std::vector<printed_lines> lines) {
    for (auto& some : lines) {
        if (some.lease != entry_lease) continue;
        if (some.first > job.next_line) job.said.skip(some.first - job.next_line);
        const auto known = job.next_line > some.first ? job.next_line - some.first : 0;
        for (auto at = known; at < some.lines.size(); ++at) job.said.add(std::move(some.lines[at]));
        job.next_line = std::max(job.next_line, some.first + some.lines.size());
    }
    ++changes_;
    job.news.wake_all();
}

/// Into the log, as it is now.
SKEIN_INLINE void job_book::note(const submitted_job& job) {
    job_record r;
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
    r.may_run = job.state == job_state::retrying && given_up_.may_run(job.lease_of, loop_.now());
    memory_.job_is(std::move(r));
}

/// What the log says of a job.
SKEIN_INLINE job_ptr job_of_record(const job_record& r) {
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
    job->stops_as = job_state::stopped;
    for (const auto as : {job_state::failed, job_state::retrying})
        if (r.stops_as == static_cast<std::uint8_t>(as)) job->stops_as = as;
    job->stops_for = r.stops_for;
    job->placed_on = r.placed_on;
    job->said.begin_at(r.lines_before);
    return job;
}

SKEIN_INLINE void job_book::keep_rows(submitted_job& job, const job_rows& rows) {
    const auto folder = printable(rows.folder.substr(0, 4096));
    if (rows.offset == 0 && !rows.bytes.empty()) {
        job.rows.clear();
        ++job.rows_edition;
        job.pace.begin_anew();
    }
    if (job.folder != folder) job.told.hear({}); // of another run
    job.folder = folder;
    job.run = rows.run.substr(0, 256);
    if (!rows.told.empty()) job.told.hear(rows.told.substr(0, table_reader::most_told));
    ++changes_;
    job.news.wake_all();
    if (rows.bytes.empty() || rows.offset != job.rows.size() ||
        job.rows.size() + rows.bytes.size() > most_rows_bytes)
        return;
    job.rows += as_text(rows.bytes);
    job.pace.came(loop_.now(), progress_of(job.rows).step);
}

} // namespace skein::cluster::detail
