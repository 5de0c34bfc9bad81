// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/data/detail/row_engine.hpp>.

#include <skein/core/cancel.hpp>
#include <skein/core/check.hpp>
#include <skein/core/error.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/sleep.hpp>
#include <skein/data/arena.hpp>
#include <skein/data/detail/row_program.hpp>
#include <skein/data/order.hpp>

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include <fmt/core.h>

namespace skein::data::detail {

SKEIN_INLINE std::uint64_t dealing::samples_at(std::uint64_t begin) const noexcept {
    const auto left = begin < size ? size - begin : 0;
    if (left < global_batch && drop_last) return 0;
    return std::min(left, global_batch);
}

SKEIN_INLINE batch_request batch_request::of(const dealing& deal, std::uint64_t epoch,
                                             std::uint64_t begin, int part) noexcept {
    const auto [first, last] = rank_range(deal.samples_at(begin), deal.rank, deal.world_size);
    const auto [from, to] = rank_range(last - first, part, deal.parts);
    return {deal, epoch, begin, part, begin + first + from, to - from};
}

SKEIN_INLINE std::optional<batch_request> batch_request::after() const noexcept {
    if (part + 1 < deal.parts) return of(deal, epoch, begin, part + 1);
    const auto next = begin + deal.samples_at(begin);
    if (deal.samples_at(next) > 0) return of(deal, epoch, next, 0);
    if (deal.epochs > 0 && epoch + 1 >= deal.epochs) return std::nullopt;
    return of(deal, epoch + 1, 0, 0);
}

SKEIN_INLINE row_engine::row_engine(std::shared_ptr<const row_program> program, engine_options how,
                                    std::shared_ptr<slot_pool> slots, net::offload_pool* pool,
                                    unique_function<void(finished_batch)> deliver,
                                    unique_function<void(std::string)> note)
    : program_(std::move(program)), how_(how), slots_(std::move(slots)), pool_(pool),
      deliver_(std::move(deliver)), note_(std::move(note)), desk_(how.desk) {
    stats_.push_back({.name = "here"});
}

SKEIN_INLINE task<void> row_engine::serve() {
    scope parts;
    parts.spawn(plan());
    parts.spawn(watch_rows());
    for (int i = 0; i < how_.threads; ++i) parts.spawn(make_here(desk_.join(desk::place::here)));
    if (const auto wanted = program_->wanted(); wanted.most > 0) {
        parts.spawn(watch_deadlines());
        for (int i = 0; i < wanted.most; ++i) parts.spawn(keep_helper());
    }
    auto joined = parts.join();
    co_await joined;
}

SKEIN_INLINE void row_engine::restart(std::uint64_t generation, batch_request first) {
    generation_ = generation;
    wanted_ = first;
    desk_.clear();
    batches_.clear();
    waiting_ = 0;
    out_of_slots_ = false;
    asked_.set();
    room_.set();
}

SKEIN_INLINE std::uint64_t row_engine::most_rows() const noexcept {
    if (!layout_ || travel_bytes_ == 0) return 1; // not known before the first answer
    const auto bytes = std::max(travel_bytes_, layout_->row_bytes());
    return std::max<std::uint64_t>(1, how_.most_answer / bytes);
}

// ---- the planner ---------------------------------------------------------------------------------

SKEIN_INLINE task<void> row_engine::plan() {
    auto* const at = &new_place().place;
    for (;;) {
        if (!wanted_) {
            asked_.reset();
            auto asked = asked_.wait();
            co_await asked;
            continue;
        }
        if (batches_.size() + waiting_ >= how_.most_ahead) {
            room_.reset();
            auto room = room_.wait();
            co_await room;
            continue;
        }
        const auto generation = generation_;
        auto batch = std::make_shared<filling>();
        batch->out.generation = generation;
        batch->out.wanted = *wanted_;
        const auto& r = batch->out.wanted;
        batch->samples.reserve(r.count);
        for (auto place = r.first; place < r.first + r.count; ++place)
            batch->samples.push_back(program_->sample_at(how_.seed, r.epoch, place));
        if (!layout_ && r.count > 0) {
            auto looking = net::offload([this, batch, at] { return probe(*batch, *at); }, pool_);
            auto found = co_await looking;
            if (generation != generation_) continue;
            layout_ = std::move(found.layout);
            if (!layout_) batch->out.bad = std::move(found.bad);
        }
        if (layout_ && r.count > 0) {
            slot_rows_ = std::max(slot_rows_, r.count);
            batch->out.memory = slots_->take(layout_, slot_rows_);
            if (!batch->out.memory) {
                out_of_slots_ = batches_.empty();
                room_.reset();
                auto room = room_.wait();
                co_await room;
                continue;
            }
        }
        out_of_slots_ = false;
        batch->number = next_number_++;
        batch->fates.assign(r.count, row_fate::dropped);
        batches_[batch->number] = batch;
        wanted_ = r.after();
        if (batch->out.memory) {
            desk_.open(batch->number, r.count);
            work_.set();
            auto others = yield(); // large batches: the first is begun before the last is planned
            co_await others;
        } else {
            batch->is_done = true;
            hand_out();
        }
    }
}

/// Batches leave in order.
SKEIN_INLINE void row_engine::hand_out() {
    while (!batches_.empty() && batches_.begin()->second->is_done) {
        const auto batch = batches_.begin()->second;
        batches_.erase(batches_.begin());
        desk_.close(batch->number);
        auto& out = batch->out;
        // Errors come in the order of the places, whoever found them first.
        const auto place_of = [&](const bad_row& one) {
            return std::ranges::find(batch->samples, one.sample) - batch->samples.begin();
        };
        std::ranges::sort(out.bad, {}, place_of);
        // Rows move up to where filters left holes.
        if (out.memory) {
            std::uint64_t kept = 0;
            for (std::uint64_t row = 0; row < batch->fates.size(); ++row) {
                if (batch->fates[row] != row_fate::made) continue;
                if (kept != row) out.memory->move_row(row, kept);
                out.samples.push_back(batch->samples[row]);
                kept += 1;
            }
        }
        waiting_ += 1;
        deliver_(std::move(out));
    }
}

// ---- rows made here ------------------------------------------------------------------------------

/// While it lives the rows of this thread are seen.
class row_engine::row_watch {
public:
    explicit row_watch(row_place& at) : at_(at), before_(place_of_row) {
        place_of_row = &at;
        at.busy.store(true, std::memory_order_relaxed);
    }
    row_watch(const row_watch&) = delete;
    row_watch& operator=(const row_watch&) = delete;
    ~row_watch() {
        at_.busy.store(false, std::memory_order_relaxed);
        place_of_row = before_;
    }

private:
    row_place& at_;
    row_place* before_;
};

SKEIN_INLINE row_engine::watched_place& row_engine::new_place() { return places_.emplace_back(); }

SKEIN_INLINE std::string row_engine::text_of_place(const row_place& at) const {
    return text_of_sample(at.sample.load(std::memory_order_relaxed), *program_) + ", " +
           program_->step_name(at.step.load(std::memory_order_relaxed));
}

SKEIN_INLINE std::optional<row_under_way> row_engine::oldest_row() {
    const auto now = loop::current().exact_now();
    std::optional<row_under_way> oldest;
    for (auto& each : places_) {
        if (!each.place.busy.load(std::memory_order_relaxed)) continue;
        if (const auto rows = each.place.rows.load(std::memory_order_relaxed); rows != each.seen) {
            each.seen = rows;
            each.since = now;
            each.next_word = how_.slow_row;
        }
        const auto age = between(each.since, now);
        if (oldest && oldest->age >= age) continue;
        oldest = {text_of_place(each.place), age};
    }
    return oldest;
}

/// A row that does not end holds all up that come behind it: that is said.
SKEIN_INLINE task<void> row_engine::watch_rows() {
    for (;;) {
        auto slept = sleep_for(how_.slow_row / 5);
        co_await slept;
        (void)oldest_row();
        const auto now = loop::current().exact_now();
        for (auto& each : places_) {
            const auto age = between(each.since, now);
            if (!each.place.busy.load(std::memory_order_relaxed) || age < each.next_word ||
                each.place.rows.load(std::memory_order_relaxed) != each.seen)
                continue;
            each.next_word *= 2;
            note_(fmt::format("{}: has taken {:.0f} s so far", text_of_place(each.place),
                              to_seconds(age)));
        }
    }
}

SKEIN_INLINE row_engine::probed row_engine::probe(const filling& batch, row_place& at) const {
    static thread_local arena memory;
    const arena_scope scope(memory);
    const row_watch watch(at);
    probed found;
    cells values;
    for (const auto sample : batch.samples) {
        memory.reset();
        at.begin(sample);
        try {
            if (!program_->make(how_.seed, batch.out.wanted.epoch, sample, values)) continue;
        } catch (...) {
            found.bad.push_back(
                {sample, error_of_row(std::current_exception(), sample, *program_)});
            continue;
        }
        auto layout = std::make_shared<row_layout>();
        layout->columns = values;
        for (auto& column : layout->columns) column.data = nullptr;
        found.layout = std::move(layout);
        break;
    }
    return found;
}

SKEIN_INLINE void row_engine::write(const filling& batch, std::uint64_t row,
                                    const cells& values) const {
    const auto& columns = batch.out.memory->layout().columns;
    for (std::size_t i = 0; i < columns.size(); ++i)
        if (!values[i].is_like(columns[i]))
            throw error(errc::mismatch, fmt::format("column {} is {}, in the rows before it was {}",
                                                    i, text_of(values[i]), text_of(columns[i])))
                .with_hint("rows of one batch have one shape: resize or crop images, pad arrays");
    batch.out.memory->write(row, values);
}

template <class Row, class Fatal>
std::vector<bad_row> row_engine::each_row(filling& batch, work_range range, Row row,
                                          Fatal fatal) const {
    static thread_local arena memory; // its blocks serve the next range, too
    const arena_scope scope(memory);
    std::vector<bad_row> bad;
    cells values;
    for (std::uint64_t i = 0; i < range.count; ++i) {
        const auto at = range.first + i;
        memory.reset();
        if (place_of_row != nullptr) place_of_row->begin(batch.samples[at]);
        bool is_made = false;
        try {
            batch.fates[at] = row(i, batch.samples[at], values);
            is_made = batch.fates[at] == row_fate::made;
            if (is_made) write(batch, at, values);
        } catch (...) {
            if (fatal()) throw;
            batch.fates[at] = row_fate::bad;
            bad.push_back({batch.samples[at],
                           error_of_row(std::current_exception(), batch.samples[at], *program_),
                           is_made});
        }
    }
    return bad;
}

SKEIN_INLINE std::vector<bad_row> row_engine::fill(filling& batch, work_range range,
                                                   row_place& at) const {
    const row_watch watch(at);
    return each_row(
        batch, range,
        [&](std::uint64_t, std::uint64_t sample, cells& values) {
            const auto epoch = batch.out.wanted.epoch;
            return program_->make(how_.seed, epoch, sample, values) ? row_fate::made
                                                                    : row_fate::dropped;
        },
        [] { return false; });
}

SKEIN_INLINE task<void> row_engine::make_here(std::uint64_t me) {
    auto* const cancel = co_await skein::detail::current_cancel{};
    auto* const at = &new_place().place;
    for (;;) {
        // Work on a thread is waited for, cancelled or not: while there is more of it nothing throws.
        if (cancel != nullptr && cancel->requested())
            throw error(errc::cancelled, "the loader goes");
        const auto range = desk_.take(me, loop::current().exact_now());
        if (!range) {
            work_.reset();
            auto more = work_.wait();
            co_await more;
            continue;
        }
        const auto batch = batches_.at(range->batch);
        duration spent{};
        auto filled = net::offload([this, batch, r = *range, at] { return fill(*batch, r, *at); },
                                   pool_, &spent);
        auto bad = co_await filled;
        stats_[0].rows += range->count;
        stats_[0].seconds += to_seconds(spent);
        finish(me, *range, batch, std::move(bad), spent);
    }
}

SKEIN_INLINE void row_engine::finish(std::uint64_t executor, const work_range& range,
                                     const batch_ptr& batch, std::vector<bad_row> bad,
                                     duration spent) {
    for (auto& each : bad) batch->out.bad.push_back(std::move(each));
    if (desk_.finish(executor, range.id, spent)) {
        batch->is_done = true;
        hand_out();
        room_.set(); // the planner looks whether all slots are out
    }
}

SKEIN_INLINE std::vector<executor_stats> row_engine::stats() const { return stats_; }

} // namespace skein::data::detail
