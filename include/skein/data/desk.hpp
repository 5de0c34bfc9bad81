// SPDX-License-Identifier: Apache-2.0
#pragma once
// The desk: gives ranges of rows to those who make them, and takes the results by number.
//
// Batches are opened in the order in which they are wanted. Executors (threads here, helpers
// elsewhere) come for a range when they have nothing to do; it is as long as they make in a few
// milliseconds. A range is given out again when its helper is lost or takes four times as long as
// usual, and at the latest a second after what its rows take here: a helper that stands still again
// and again does not set the pace. Then a thread of this process makes it. The first result counts:
// rows are pure functions of their sample, so whoever makes them makes the same bytes. A thread of
// this process writes its rows in place and cannot be lost; what a helper sends is written by who
// was let by begin_write().
//
// A state machine without a clock, threads or bytes: the same on real and simulated loops.
//
//     data::desk work;
//     const auto me = work.join(data::desk::place::here);
//     work.open(0, 64);
//     if (auto range = work.take(me, loop.now())) { ...; work.finish(me, range->id, loop.now()); }
//
// Next users: batch inference (a range is a part of the output), reads from stores.

#include <skein/core/time.hpp>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

namespace skein::data {

/// How a desk cuts and how long it waits.
struct desk_options {
    duration range_time = std::chrono::milliseconds(4);       ///< that a range should take
    duration least_deadline = std::chrono::milliseconds(100); ///< of a helper's range
    int deadline_factor = 4;                      ///< times a helper's usual time of so many rows
    duration most_late = std::chrono::seconds(1); ///< after what the rows take here, at most
    std::uint64_t most_rows = 256;                ///< of one range
};

/// Rows [first, first + count) of an open batch.
struct work_range {
    std::uint64_t id = 0; ///< a new one whenever rows are given out
    std::uint64_t batch = 0;
    std::uint64_t first = 0, count = 0;
};

/// Who makes which rows. One thread.
class desk {
public:
    /// Where an executor is.
    enum class place : std::uint8_t {
        here,  ///< writes in place, cannot be lost
        there, ///< sends its results; may be slow, or lost
    };
    explicit desk(desk_options how = {}) : how_(how) {}

    /// An executor; its number is never used again.
    ///   most_rows  of one of its ranges; 0: as the options say
    [[nodiscard]] std::uint64_t join(place where, std::uint64_t most_rows = 0);
    /// It takes at most so many rows from now on.
    void limit(std::uint64_t executor, std::uint64_t most_rows);
    /// Its ranges are open again.
    void leave(std::uint64_t executor);

    /// A batch to be made. Numbers ascend.
    void open(std::uint64_t batch, std::uint64_t rows);
    /// All batches are forgotten; results of their ranges count no more.
    void clear() noexcept;

    /// The next range for an executor: an overdue one of the first batch, then rows that nobody
    /// has, then overdue ones of later batches. Overdue ones are for executors here. Nothing: there
    /// is nothing to do now.
    [[nodiscard]] std::optional<work_range> take(std::uint64_t executor, time_point now);
    /// Before the result of a helper is written to the batch. False: somebody else writes it, has
    /// written it, or the batch is forgotten; the result is dropped.
    [[nodiscard]] bool begin_write(std::uint64_t executor, std::uint64_t range);
    /// The rows of a range are where they belong.
    ///   spent  by the executor alone, for all rows; teaches how long its ranges should be
    ///   result whether its batch is done now
    bool finish(std::uint64_t executor, std::uint64_t range, duration spent);
    /// A result came too late to be written; it teaches as one that was.
    void learn(std::uint64_t executor, std::uint64_t rows, duration spent);
    /// An executor could not make a range: it is open again, for others.
    void give_up(std::uint64_t executor, std::uint64_t range);

    /// Whether all rows of an open batch are made. It is forgotten with close().
    [[nodiscard]] bool is_done(std::uint64_t batch) const;
    void close(std::uint64_t batch);

    /// When the next range is overdue; nothing if none can be.
    [[nodiscard]] std::optional<time_point> next_deadline() const;
    /// Seconds per row of an executor; 0: not known.
    [[nodiscard]] double row_time(std::uint64_t executor) const;
    /// Ranges that were given out again, and results that came too late.
    [[nodiscard]] std::uint64_t given_again() const noexcept { return given_again_; }
    [[nodiscard]] std::uint64_t dropped() const noexcept { return dropped_; }
    /// Rows that are open or being made.
    [[nodiscard]] std::uint64_t rows_left() const noexcept;

private:
    struct executor_state {
        place where = place::here;
        std::uint64_t most_rows = 0;
        double row_seconds = 0; // smoothed
    };
    struct holder {
        std::uint64_t executor = 0, range = 0;
    };
    /// Rows of one batch that were cut off together.
    struct piece {
        std::uint64_t first = 0, count = 0;
        std::vector<holder> holders;        // who has them; several when overdue
        std::vector<std::uint64_t> refused; // executors that could not
        std::uint64_t writer = 0;           // the range that writes it; 0: none
        time_point deadline = time_point::max();
        time_point since = time_point::max(); // first given to a helper
    };
    struct batch_state {
        std::uint64_t rows = 0, cut = 0, done = 0; // cut: rows below are pieces or done
        std::deque<piece> pieces;                  // neither done
    };

    [[nodiscard]] std::uint64_t rows_for(const executor_state& who, std::uint64_t left) const;
    [[nodiscard]] work_range give(std::uint64_t executor, std::uint64_t batch, piece& what,
                                  time_point now);
    [[nodiscard]] bool may_have(const piece& what, std::uint64_t executor, time_point now) const;
    /// When a thread here takes a piece over, whoever has it.
    [[nodiscard]] time_point latest(const piece& what) const;
    [[nodiscard]] piece* find(std::uint64_t range, batch_state** in = nullptr);
    void release(std::uint64_t range);

    desk_options how_;
    std::map<std::uint64_t, batch_state> batches_;
    std::map<std::uint64_t, executor_state> executors_;
    std::map<std::uint64_t, std::uint64_t> batch_of_; // range to batch
    std::uint64_t next_executor_ = 1, next_range_ = 1;
    std::uint64_t given_again_ = 0, dropped_ = 0;
    double row_seconds_ = 0; // of those here
};

} // namespace skein::data

#if SKEIN_HEADER_ONLY
#include <skein/data/detail/desk.ipp>
#endif
