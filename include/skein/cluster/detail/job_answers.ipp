// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of cluster/detail/job_book.hpp: what people and pages are told of jobs.

#include <skein/cluster/detail/hello_checks.hpp>
#include <skein/cluster/detail/job_folder.hpp>
#include <skein/cluster/jobs.hpp>
#include <skein/core/awaitable.hpp>
#include <skein/core/error.hpp>
#include <skein/core/timeout.hpp>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <limits>
#include <utility>

#include <fmt/format.h>

namespace skein::cluster::detail {

inline constexpr std::uint32_t most_follow_ms = 30'000;

inline task<void> wait_for_news(job_ptr job) { co_await job->news.wait(); }

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

///   held_up   held_up_jobs(), once for a whole list
SKEIN_INLINE job_info job_book::info_of(const submitted_job& job,
                                        const texts_by_job* held_up) const {
    job_info out;
    out.id = job.what.id;
    out.state = static_cast<std::uint8_t>(job.shown);
    out.reason = job.reason;
    if (job.state == job_state::pending && job.reason.empty())
        out.reason = sources_.why_pending(job);
    if (job.state == job_state::starting || job.state == job_state::running)
        if (auto silence = sources_.silence_of(job); !silence.empty())
            out.reason = std::move(silence);
    if (job.state == job_state::running && out.reason.empty()) {
        const auto all = held_up == nullptr ? sources_.held_up_jobs() : texts_by_job();
        const auto& of = held_up == nullptr ? all : *held_up;
        if (const auto waits = of.find(job.what.id); waits != of.end()) out.reason = waits->second;
    }
    if (job.is_stopping && !is_over(job.state))
        out.reason = is_moving(job) ? job.stops_for : "it is being stopped";
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
    out.worlds = job.told.worlds;
    out.last_change = job.told.last_change;
    out.workers = job.told.workers;
    return out;
}

SKEIN_INLINE job_list job_book::list(const ask_jobs& asked, std::size_t bound) const {
    job_list out;
    out.total = by_id_.size();
    if (!asked.id.empty()) {
        out.jobs.push_back(info_of(*called(asked.id)));
        return out;
    }
    const auto most = std::min<std::size_t>(asked.most == 0 ? bound : asked.most, bound);
    const auto held_up = sources_.held_up_jobs();
    std::size_t at = 0;
    for (auto one = in_order_.rbegin(); one != in_order_.rend() && out.jobs.size() < most; ++one)
        if (at++ >= asked.first) out.jobs.push_back(brief(info_of(*one->second, &held_up)));
    return out;
}

SKEIN_INLINE job_lines job_book::lines_of(const submitted_job& job, std::uint64_t from) const {
    job_lines out;
    out.now = info_of(job);
    auto some = job.said.from(std::max(from, std::uint64_t{1}), most_followed);
    out.first = some.first;
    out.lines = std::move(some.lines);
    out.is_all = is_over(job.shown) && out.first + out.lines.size() > job.said.total();
    return out;
}

SKEIN_INLINE task<job_lines> job_book::follow(job_book* self, std::shared_ptr<bool> hears_more,
                                              follow_job asked) {
    const auto job = self->called(asked.id);
    const auto until = deadline_after(
        self->loop_.now(), std::chrono::milliseconds(std::min(asked.wait_ms, most_follow_ms)));
    for (;;) {
        const auto now = self->loop_.now();
        auto from = std::max(asked.from, std::uint64_t{1});
        // The head before may have had more lines of an attempt than this one ever heard of.
        if (asked.attempt != 0 && asked.attempt < job->attempt)
            from = std::min(from, job->lines_before + 1);
        const bool is_news = job->said.total() + 1 > from ||
                             static_cast<std::uint8_t>(job->shown) != asked.known ||
                             is_over(job->shown);
        if (is_news || now >= until) {
            auto said = self->lines_of(*job, from);
            *hears_more = !said.is_all;
            co_return said;
        }
        auto waiting = as_result(with_timeout(wait_for_news(job), until - now));
        const auto woken = co_await waiting;
        if (!woken && woken.error().code() != errc::timeout) throw woken.error();
    }
}

SKEIN_INLINE task<job_log> job_book::log_from(job_book* self, ask_log asked) {
    const auto job = self->called(asked.id);
    if (asked.attempt > job->attempt)
        throw error(errc::not_found, fmt::format("job {} has had {} attempts so far, not {}",
                                                 asked.id, job->attempt, asked.attempt))
            .with_hint("skein job status says how many there were");
    // Which lines are meant; those of an attempt under another head are known to its node alone.
    std::uint64_t low = 1, high = job->said.total();
    bool is_known = asked.attempt == 0;
    if (const auto at = job->begins.find(asked.attempt); at != job->begins.end()) {
        is_known = true;
        low = at->second;
        if (const auto next = std::next(at); next != job->begins.end()) high = next->second - 1;
    }
    auto from = std::max(asked.from, low);
    if (asked.tail != 0 && is_known && high >= asked.tail)
        from = std::max(from, high - asked.tail + 1);
    job_log out;
    out.now = self->info_of(*job);
    out.first = from;
    auto kept = job->said.from(from, most_followed);
    if (!is_known) kept.lines.clear();
    if (kept.first + kept.lines.size() > high + 1)
        kept.lines.resize(high + 1 > kept.first ? high + 1 - kept.first : 0);
    const bool is_here = !kept.lines.empty() && kept.first == from;
    if (is_known && (is_here || from > high)) {
        if (is_here) out.lines = std::move(kept.lines);
        out.is_all = out.first + out.lines.size() > high;
        co_return out;
    }
    ask_node_log what;
    what.attempt = asked.attempt;
    what.from = from;
    if (!is_known) what.tail = asked.tail;
    auto asking = self->sources_.ask_nodes(job, std::move(what));
    auto found = co_await asking;
    // What comes behind the first line that is kept here is taken from here.
    const auto until = !kept.lines.empty() ? kept.first
                       : is_known          ? high + 1
                                           : std::numeric_limits<std::uint64_t>::max();
    if (found.first >= until) found.lines.clear();
    if (!found.lines.empty()) {
        found.lines.resize(std::min<std::uint64_t>(found.lines.size(), until - found.first));
        out.first = found.first;
        out.lines = std::move(found.lines);
        out.is_all = is_known && out.first + out.lines.size() > high;
        co_return out;
    }
    out.first = kept.lines.empty() && is_known ? high + 1 : kept.lines.empty() ? from : kept.first;
    out.lines = std::move(kept.lines);
    out.is_all = out.lines.empty() || (is_known && out.first + out.lines.size() > high);
    co_return out;
}

/// Of a job that has ended under another head the node may have the table.
SKEIN_INLINE task<job_table_text> job_book::table_of(job_book* self, std::string id) {
    const auto job = self->called(id);
    if (job->rows.empty() && is_over(job->state)) {
        ask_node_log what;
        what.table = true;
        auto asking = self->sources_.ask_nodes(job, std::move(what));
        auto found = co_await asking;
        if (job->rows.empty() && found.rows.size() <= most_rows_bytes) {
            job->run = found.run.substr(0, 256);
            job->rows = std::move(found.rows);
        }
    }
    job_table_text out{job->run, job->rows};
    co_return out;
}

SKEIN_INLINE void job_book::serve(net::request_service& service,
                                  const std::weak_ptr<bool>& hears_more) {
    service.on<ask_jobs, job_list>([this](ask_jobs m, const net::caller& who) -> task<job_list> {
        return [](job_book* self, ask_jobs asked, std::string peer) -> task<job_list> {
            check_version(asked.version, peer);
            co_return self->list(asked, most_listed);
        }(this, std::move(m), who.peer);
    });
    service.on<follow_job, job_lines>(
        [this, hears_more](follow_job m, const net::caller& who) -> task<job_lines> {
            check_version(m.version, who.peer);
            auto by = hears_more.lock();
            if (by == nullptr) throw error(errc::closed, "its link has ended");
            return follow(this, std::move(by), std::move(m));
        });
    service.on<ask_log, job_log>([this](ask_log m, const net::caller& who) -> task<job_log> {
        check_version(m.version, who.peer);
        return log_from(this, std::move(m));
    });
}

} // namespace skein::cluster::detail
