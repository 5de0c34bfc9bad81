// SPDX-License-Identifier: Apache-2.0
#pragma once
// The part of a row engine that works with helpers: bodies of <skein/data/detail/row_engine.hpp>.

#include <skein/core/backoff.hpp>
#include <skein/core/error.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/sleep.hpp>
#include <skein/core/units.hpp>
#include <skein/data/detail/row_program.hpp>

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include <fmt/core.h>

namespace skein::data::detail {

SKEIN_INLINE task<void> row_engine::watch_deadlines() {
    for (;;) {
        const auto next = desk_.next_deadline();
        if (!next) {
            given_.reset();
            auto given = given_.wait();
            co_await given;
            continue;
        }
        // Not at once again: whoever may take an overdue range looks when it is free. Nor late: a
        // range that is given meanwhile may be overdue before this one.
        const auto now = loop::current().exact_now();
        const auto until = std::min(*next, now + how_.desk.least_deadline);
        auto slept = sleep_until(std::max(until, now + how_.desk.range_time));
        co_await slept;
        work_.set();
    }
}

/// Says once that a helper is waited for: nobody else would.
SKEIN_INLINE task<void> row_engine::remind() {
    auto slept = sleep_for(how_.helper_reminder);
    co_await slept;
    if (!std::exchange(has_reminded_, true))
        note_(fmt::format("no helper has come in {:.0f} s: its rows are made here until one does; "
                          "without a cluster the program's main begins with "
                          "skein::serve_if_worker()",
                          to_seconds(how_.helper_reminder)));
}

/// A helper, whenever there is one to be had.
SKEIN_INLINE task<std::unique_ptr<row_helper>> row_engine::wait_for_helper() {
    std::unique_ptr<row_helper> made;
    std::exception_ptr failure;
    scope reminder;
    reminder.spawn(remind());
    try {
        auto making = program_->make_helper();
        made = co_await making;
    } catch (...) {
        failure = std::current_exception();
    }
    reminder.cancel();
    try {
        auto joined = reminder.join();
        co_await joined;
    } catch (const error&) { // cancelled
    }
    if (failure) std::rethrow_exception(failure);
    co_return made;
}

/// One place for a helper: makes it, works with it, and makes another one when it is lost.
SKEIN_INLINE task<void> row_engine::keep_helper() {
    const auto wanted = program_->wanted();
    std::vector<row_place*> places; // of what it takes in at one time
    for (int i = 0; i <= wanted.cpus; ++i) places.push_back(&new_place().place);
    int in_vain = 0;
    // A loader that nobody asks takes no cores from one that somebody does.
    while (generation_ == 0) {
        auto asked = asked_.wait();
        co_await asked;
    }
    for (;;) {
        helper_state it;
        std::optional<error> failed;
        try {
            auto making = wait_for_helper();
            it.remote = co_await making;
        } catch (const error& e) {
            if (e.code() == errc::cancelled) throw;
            failed = e;
        }
        if (!failed) {
            it.executor = desk_.join(desk::place::there, most_rows());
            it.index = stats_.size();
            stats_.push_back({.name = it.remote->name()});
            {
                scope streams; // one range more than it has threads, so that it never waits
                for (auto* const at : places) streams.spawn(use_helper(&it, at));
                try {
                    auto ended = streams.join();
                    co_await ended;
                } catch (const error& e) {
                    if (e.code() == errc::cancelled) {
                        desk_.leave(it.executor);
                        throw;
                    }
                    failed = e;
                }
            }
            if (stats_[it.index].rows > 0) in_vain = 0;
            stats_[it.index].lost += 1;
            desk_.leave(it.executor);
            work_.set();
            if (it.broken) {
                note_(fmt::format("helper {} is left out: {}", stats_[it.index].name,
                                  failed ? failed->what() : "it cannot make these rows"));
                co_return;
            }
        }
        if (in_vain == 0 && failed)
            note_(failed->code() == errc::worker_lost && it.remote
                      ? fmt::format("helper {} was lost; its rows are made again, another one is "
                                    "made",
                                    it.remote->name())
                      : fmt::format("a helper cannot be had, tried again: {}", failed->what()));
        auto slept = sleep_for(pause_after(++in_vain, how_.helper_retry, 32 * how_.helper_retry));
        co_await slept;
    }
}

SKEIN_INLINE task<void> row_engine::use_helper(helper_state* it, row_place* at) {
    for (;;) {
        auto ranged = one_range(it, at);
        if (!co_await ranged) {
            work_.reset();
            auto more = work_.wait();
            co_await more;
        }
    }
}

/// What a range asks a helper for.
SKEIN_INLINE std::optional<rows_request> row_engine::request_for(helper_state& it,
                                                                 const filling& batch,
                                                                 work_range range) {
    rows_request request;
    request.seed = how_.seed;
    request.epoch = batch.out.wanted.epoch;
    const auto from = batch.samples.begin() + static_cast<std::ptrdiff_t>(range.first);
    request.samples.assign(from, from + static_cast<std::ptrdiff_t>(range.count));
    try {
        request.places = program_->locate(request.samples);
        return request;
    } catch (...) {
        const auto why = to_error(std::current_exception(), errc::invalid_argument);
        hand_back(it, range);
        if (++it.failures < 3) return std::nullopt;
        it.broken = true;
        throw why;
    }
}

/// Somebody else makes the range.
SKEIN_INLINE void row_engine::hand_back(const helper_state& it, const work_range& range) {
    desk_.give_up(it.executor, range.id);
    work_.set();
}

/// Whether an answer has every row that was wanted, each made, dropped or bad. False: its rows are
/// made elsewhere.
///   errors  not_found, mismatch: the helper is of no use
SKEIN_INLINE bool row_engine::is_usable(helper_state& it, const work_range& range,
                                        const rows_answer& answer) {
    const auto count = [&](row_fate fate) {
        return static_cast<std::size_t>(std::ranges::count(answer.fates, fate));
    };
    const auto away = count(row_fate::away);
    if (answer.fates.size() != range.count || answer.bad.size() != away + count(row_fate::bad)) {
        hand_back(it, range);
        it.broken = true;
        throw error(errc::mismatch,
                    fmt::format("it answered with {} rows and {} errors where {} rows were wanted",
                                answer.fates.size(), answer.bad.size(), range.count))
            .with_hint("is it the same build of the program?");
    }
    if (away == 0) {
        it.failures = 0;
        return true;
    }
    // What a host cannot read is made here; one that cannot read again and again is left out.
    hand_back(it, range);
    auto& mine = stats_[it.index];
    if (mine.away == 0)
        note_(fmt::format("helper {} cannot read: {}; its rows are made here", mine.name,
                          answer.bad.front().why.what()));
    mine.away += away;
    if (++it.failures < 3) return false;
    it.broken = true;
    throw error(errc::not_found, fmt::format("it cannot read: {}", answer.bad.front().why.what()));
}

/// False: there is nothing to do for it.
SKEIN_INLINE task<bool> row_engine::one_range(helper_state* it, row_place* at) {
    desk_.limit(it->executor, most_rows());
    const auto range = desk_.take(it->executor, loop::current().exact_now());
    if (!range) co_return false;
    given_.set();
    rows_answer answer;
    std::optional<error> failed;
    const auto begin = loop::current().exact_now();
    auto request = request_for(*it, *batches_.at(range->batch), *range);
    if (!request) co_return true; // made here: its rows say why they cannot be
    try {
        auto asked = it->remote->make(std::move(*request));
        answer = co_await asked;
    } catch (const error& e) {
        failed = e;
    }
    if (failed) {
        hand_back(*it, *range);
        throw *failed;
    }
    travel_bytes_ = std::max(travel_bytes_, answer.rows.size() / range->count + 1);
    if (!is_usable(*it, *range, answer)) co_return true;
    const auto there = between(begin, loop::current().exact_now());
    if (!desk_.begin_write(it->executor, range->id)) {
        desk_.learn(it->executor, range->count, there);
        co_return true;
    }
    // Not before: the memory of a batch that was forgotten would stay out as long as it is silent.
    const auto batch = batches_.at(range->batch);
    std::optional<taken_range> taken;
    duration receiving{};
    try {
        auto taking = net::offload(
            [this, batch, r = *range, &answer, at] { return take_in(*batch, r, answer, *at); },
            pool_, &receiving);
        taken = co_await taking;
    } catch (const error& e) {
        failed = e;
    }
    if (!taken) {
        hand_back(*it, *range);
        it->broken = failed->code() != errc::cancelled;
        throw *failed;
    }
    auto& mine = stats_[it->index];
    mine.rows += range->count;
    mine.seconds += static_cast<double>(answer.nanoseconds) * 1e-9;
    if (taken->remade == 0) mine.receive_seconds += to_seconds(receiving);
    say_if_it_does_not_pay(mine);
    const auto sick = doubt(*it, *range, *taken);
    finish(it->executor, *range, batch, std::move(taken->bad), there);
    if (!sick) co_return true;
    it->broken = true;
    throw *sick;
}

/// What failed there and was good here is a fault of the helper. One that does so again and again
/// costs more than it gives.
///   result  why it is left out, if it is
SKEIN_INLINE std::optional<error> row_engine::doubt(helper_state& it, const work_range& range,
                                                    const taken_range& taken) {
    if (taken.refuted.empty()) {
        it.rows_since_doubt += range.count;
        return std::nullopt;
    }
    auto& mine = stats_[it.index];
    const auto first = taken.refuted.front().why.what();
    if (mine.refuted == 0)
        note_(fmt::format("helper {} failed at a row that is good here: {}; it was made here",
                          mine.name, first));
    mine.refuted += taken.refuted.size();
    it.doubts = it.rows_since_doubt < 1000 ? it.doubts + 1 : 1;
    it.rows_since_doubt = 0;
    if (it.doubts < 3) return std::nullopt;
    return error(errc::mismatch, fmt::format("{} rows failed there and were good here, the last "
                                             "one: {}",
                                             mine.refuted, first));
}

SKEIN_INLINE bool pays(const executor_stats& here, const executor_stats& helper) noexcept {
    if (here.rows < 64 || helper.rows < 64) return true;
    const auto making = here.seconds / static_cast<double>(here.rows);
    return receive_cost(helper) < 0.8 * making;
}

SKEIN_INLINE double receive_cost(const executor_stats& helper) noexcept {
    return 4 * helper.receive_seconds /
           static_cast<double>(std::max<std::uint64_t>(1, helper.rows));
}

SKEIN_INLINE void row_engine::say_if_it_does_not_pay(const executor_stats& helper) {
    if (pays(stats_[0], helper) || std::exchange(has_said_pay_, true)) return;
    const auto making = stats_[0].seconds / static_cast<double>(stats_[0].rows);
    note_(fmt::format("helpers do not pay here: taking a row in costs about {}, making it {}; "
                      "helpers{{.most = 0}} leaves them out",
                      cost_seconds(receive_cost(helper)), cost_seconds(making)));
}

SKEIN_INLINE row_engine::taken_range row_engine::take_in(filling& batch, work_range range,
                                                         const rows_answer& answer,
                                                         row_place& at) const {
    const row_watch watch(at);
    wire::reader from(answer.rows);
    std::size_t next_bad = 0;
    taken_range taken;
    taken.bad = each_row(
        batch, range,
        [&](std::uint64_t i, std::uint64_t sample, cells& values) {
            const auto epoch = batch.out.wanted.epoch;
            // What a function throws there may be the host's fault: a row is bad when it is bad
            // here, and its error is the one of here.
            if (answer.fates[i] == row_fate::bad) {
                const auto& there = answer.bad[next_bad++].why;
                taken.remade += 1;
                const bool made = program_->make(how_.seed, epoch, sample, values);
                taken.refuted.push_back(
                    {sample, error_of_row(std::make_exception_ptr(there), sample, *program_)});
                return made ? row_fate::made : row_fate::dropped;
            }
            if (answer.fates[i] != row_fate::made) return row_fate::dropped;
            return program_->finish(from, how_.seed, epoch, sample, values) ? row_fate::made
                                                                            : row_fate::dropped;
        },
        [&] { return !from.ok(); }); // the answer itself is wrong
    if (!from.finish()) from.status().value();
    return taken;
}

} // namespace skein::data::detail
