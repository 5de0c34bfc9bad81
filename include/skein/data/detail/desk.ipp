// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/data/desk.hpp>.

#include <skein/core/check.hpp>

#include <algorithm>
#include <utility>

namespace skein::data {

namespace detail {
/// Smoothed as TCP smooths its round trips: one part in eight of the newest.
SKEIN_INLINE void smooth(double& value, double newest) noexcept {
    value = value > 0 ? value + (newest - value) / 8 : newest;
}
} // namespace detail

SKEIN_INLINE std::uint64_t desk::join(place where, std::uint64_t most_rows) {
    executors_[next_executor_] = {.where = where, .most_rows = most_rows};
    return next_executor_++;
}

SKEIN_INLINE void desk::limit(std::uint64_t executor, std::uint64_t most_rows) {
    executors_.at(executor).most_rows = most_rows;
}

SKEIN_INLINE void desk::leave(std::uint64_t executor) {
    std::vector<std::uint64_t> held;
    for (auto& [number, batch] : batches_)
        for (auto& each : batch.pieces)
            for (const auto& h : each.holders)
                if (h.executor == executor) held.push_back(h.range);
    for (const auto range : held) release(range);
    executors_.erase(executor);
}

SKEIN_INLINE void desk::open(std::uint64_t batch, std::uint64_t rows) {
    SKEIN_CHECK(batches_.empty() || batches_.rbegin()->first < batch,
                "batch {} is opened after a later one", batch);
    batches_[batch].rows = rows;
}

SKEIN_INLINE void desk::clear() noexcept {
    batches_.clear();
    batch_of_.clear();
}

SKEIN_INLINE std::uint64_t desk::rows_for(const executor_state& who, std::uint64_t left) const {
    auto count = std::max<std::uint64_t>(1, left);
    const double each = who.row_seconds > 0 ? who.row_seconds : row_seconds_;
    // Whoever is new makes one row, so that it is known how long a row takes.
    const double fit = each > 0 ? to_seconds(how_.range_time) / each : 1;
    count = std::min(count, static_cast<std::uint64_t>(
                                std::clamp(fit, 1.0, static_cast<double>(how_.most_rows))));
    if (who.most_rows > 0) count = std::min(count, who.most_rows);
    // What is left of a batch is shared: nobody takes more than his part of it.
    return std::clamp<std::uint64_t>(left / std::max<std::size_t>(1, executors_.size()), 1, count);
}

SKEIN_INLINE bool desk::may_have(const piece& what, std::uint64_t executor, time_point now) const {
    if (what.writer != 0 || std::ranges::find(what.refused, executor) != what.refused.end())
        return false;
    if (executors_.at(executor).where == place::here)
        return what.holders.empty() || what.deadline <= now;
    // Another helper might fall silent with it, too, and the next one: they share one wait.
    return what.holders.empty() &&
           (what.since == time_point::max() || now + how_.least_deadline <= latest(what));
}

SKEIN_INLINE time_point desk::latest(const piece& what) const {
    const double here = row_seconds_ * static_cast<double>(what.count);
    return what.since + how_.most_late +
           std::chrono::duration_cast<duration>(std::chrono::duration<double>(here));
}

SKEIN_INLINE work_range desk::give(std::uint64_t executor, std::uint64_t batch, piece& what,
                                   time_point now) {
    const auto& who = executors_.at(executor);
    if (!what.holders.empty()) given_again_ += 1;
    const work_range given{next_range_++, batch, what.first, what.count};
    what.holders.push_back({executor, given.id});
    batch_of_[given.id] = batch;
    if (who.where == place::here) {
        what.writer = given.id;
        what.deadline = time_point::max();
    } else {
        what.since = std::min(what.since, now);
        const double each = who.row_seconds > 0 ? who.row_seconds : row_seconds_;
        const auto usual = std::chrono::duration_cast<duration>(
            std::chrono::duration<double>(each * static_cast<double>(what.count)));
        // Its usual time may be long because it stands still now and then: that is no reason to
        // wait for longer than the rows are worth here.
        const auto due = now + std::max(how_.least_deadline, usual * how_.deadline_factor);
        what.deadline = std::min(due, latest(what));
    }
    return given;
}

SKEIN_INLINE std::optional<work_range> desk::take(std::uint64_t executor, time_point now) {
    const auto& who = executors_.at(executor);
    const auto overdue = [&](std::uint64_t number,
                             batch_state& batch) -> std::optional<work_range> {
        for (auto& each : batch.pieces)
            if (may_have(each, executor, now)) return give(executor, number, each, now);
        return std::nullopt;
    };
    const auto open_rows = [&](std::uint64_t number,
                               batch_state& batch) -> std::optional<work_range> {
        for (auto& each : batch.pieces)
            if (each.holders.empty() && may_have(each, executor, now))
                return give(executor, number, each, now);
        if (batch.cut == batch.rows) return std::nullopt;
        const auto count = rows_for(who, batch.rows - batch.cut);
        auto& made = batch.pieces.emplace_back();
        made.first = batch.cut;
        made.count = count;
        batch.cut += count;
        return give(executor, number, made, now);
    };
    if (batches_.empty()) return std::nullopt;
    if (auto found = overdue(batches_.begin()->first, batches_.begin()->second)) return found;
    for (auto& [number, batch] : batches_)
        if (auto found = open_rows(number, batch)) return found;
    for (auto& [number, batch] : batches_)
        if (auto found = overdue(number, batch)) return found;
    return std::nullopt;
}

SKEIN_INLINE desk::piece* desk::find(std::uint64_t range, batch_state** in) {
    const auto at = batch_of_.find(range);
    if (at == batch_of_.end()) return nullptr;
    const auto batch = batches_.find(at->second);
    if (batch == batches_.end()) return nullptr;
    for (auto& each : batch->second.pieces)
        if (std::ranges::find(each.holders, range, &holder::range) != each.holders.end()) {
            if (in != nullptr) *in = &batch->second;
            return &each;
        }
    return nullptr;
}

SKEIN_INLINE bool desk::begin_write(std::uint64_t executor, std::uint64_t range) {
    auto* const what = find(range);
    if (what == nullptr || what->writer != 0 || !executors_.contains(executor)) {
        dropped_ += 1;
        return false;
    }
    what->writer = range;
    return true;
}

SKEIN_INLINE bool desk::finish(std::uint64_t executor, std::uint64_t range, duration spent) {
    batch_state* batch = nullptr;
    auto* const what = find(range, &batch);
    if (what == nullptr) return false;
    learn(executor, what->count, spent);
    for (const auto& h : what->holders) batch_of_.erase(h.range);
    batch->done += what->count;
    std::erase_if(batch->pieces, [what](const piece& each) { return &each == what; });
    return batch->done == batch->rows;
}

SKEIN_INLINE void desk::learn(std::uint64_t executor, std::uint64_t rows, duration spent) {
    const auto who = executors_.find(executor);
    if (who == executors_.end()) return;
    auto& known = who->second.row_seconds;
    const auto each = to_seconds(spent) / static_cast<double>(rows);
    if (who->second.where == place::here) {
        detail::smooth(known, each);
        detail::smooth(row_seconds_, each);
    } else { // one that stands still for a while is not as slow as that
        detail::smooth(known, known > 0 ? std::min(each, 2 * known) : each);
    }
}

SKEIN_INLINE void desk::release(std::uint64_t range) {
    auto* const what = find(range);
    if (what == nullptr) return;
    what->holders.erase(std::ranges::find(what->holders, range, &holder::range));
    batch_of_.erase(range);
    if (what->writer == range) what->writer = 0;
    if (what->holders.empty()) what->deadline = time_point::max();
}

SKEIN_INLINE void desk::give_up(std::uint64_t executor, std::uint64_t range) {
    if (auto* const what = find(range)) what->refused.push_back(executor);
    release(range);
}

SKEIN_INLINE bool desk::is_done(std::uint64_t batch) const {
    const auto at = batches_.find(batch);
    return at != batches_.end() && at->second.done == at->second.rows;
}

SKEIN_INLINE void desk::close(std::uint64_t batch) { batches_.erase(batch); }

SKEIN_INLINE std::optional<time_point> desk::next_deadline() const {
    auto soonest = time_point::max();
    for (const auto& [number, batch] : batches_)
        for (const auto& each : batch.pieces)
            if (each.writer == 0) soonest = std::min(soonest, each.deadline);
    if (soonest == time_point::max()) return std::nullopt;
    return soonest;
}

SKEIN_INLINE double desk::row_time(std::uint64_t executor) const {
    const auto who = executors_.find(executor);
    return who == executors_.end() ? 0 : who->second.row_seconds;
}

SKEIN_INLINE std::uint64_t desk::rows_left() const noexcept {
    std::uint64_t sum = 0;
    for (const auto& [number, batch] : batches_) sum += batch.rows - batch.done;
    return sum;
}

} // namespace skein::data
