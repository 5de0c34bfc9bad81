// SPDX-License-Identifier: Apache-2.0
#pragma once
// A row engine on a thread of its own, and the thread that takes its batches.

#include <skein/core/error.hpp>
#include <skein/core/option_count.hpp>
#include <skein/core/time.hpp>
#include <skein/data/detail/row_engine.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace skein::data {

/// How rows are made and what becomes of those that cannot be.
struct loader_options {
    int rank = 0, world_size = 1; ///< batches are this rank's parts of the global ones
    std::uint64_t seed = 0;
    int threads = 0;    ///< that make rows, at most 4096; 0: the cores of this process, shared with
                        ///< the ranks here
    int local_size = 1; ///< ranks of this host
    option_count budget = std::size_t{512} << 20; ///< bytes of all batches that are being made,
                                                  ///< wait, or are still held
    option_count bad_rows = 0; ///< samples that may be left out before it is an error, of each
                               ///< rank; one that is bad in every epoch counts once. Each is named
                               ///< in the log, once
    time_span row_limit{}; ///< that one row may take here; a longer one is an error. 0: none, a row
                           ///< that takes long is named in the log
    bool drop_last = false;  ///< the last batch of an epoch only if it is full
    option_count epochs = 0; ///< passes over the data; 0: until nobody asks any more
};

/// A sample that could not be made and was left out.
struct left_out_sample {
    std::uint64_t sample = 0;
    std::string name{}; ///< as its source calls it: "cat/1.jpg"; empty: by its number alone
    std::string why{};
};

/// What a loader has done so far.
struct loader_stats {
    std::uint64_t batches = 0, rows = 0, dropped = 0;
    std::uint64_t bad = 0; ///< samples that were left out, each once: what `bad_rows` bounds
    std::vector<left_out_sample> left_out{}; ///< they, as they were met
    double waited = 0;                       ///< seconds that its batches were waited for
    double lasted = 0;                       ///< seconds since the first one was asked for
    std::size_t row_bytes = 0, peak_bytes = 0, budget = 0;
    std::uint64_t given_again = 0, late = 0; ///< ranges that were given out again, and came late
    std::vector<detail::executor_stats> makers{};

    /// Part of the time in which nothing was done but waiting for data, from 0 to 1.
    [[nodiscard]] double wait_fraction() const noexcept { return lasted > 0 ? waited / lasted : 0; }
    /// A table for people.
    [[nodiscard]] std::string text() const;
};

namespace detail {

class loader_core {
public:
    loader_core(std::shared_ptr<const row_program> program, loader_options how);
    loader_core(const loader_core&) = delete;
    loader_core& operator=(const loader_core&) = delete;
    ~loader_core();

    /// The rows of a request; blocks this thread, one at a time. What comes after the last request
    /// is being made; anything else begins anew.
    ///   errors  of the first row that could not be made, in the order of the places; exhausted:
    ///           all memory of the budget is held by batches that were given out, or this host has
    ///           no memory or open files for a row; usage: in a child that was forked; timeout: a row
    ///           takes longer than its limit; cancelled: a stop is wanted, and a row in the way does
    ///           not end. What failed may be asked for again
    [[nodiscard]] finished_batch next(const batch_request& wanted);

    /// Asked while next() waits: whether who waits is to stop. On the thread of next().
    ///   patience  with a row that is in the way of an end
    void watch_stop(std::function<bool()> wanted, duration patience = std::chrono::seconds(5));
    [[nodiscard]] loader_stats stats() const;
    /// Samples that were left out behind the first `seen` ones.
    [[nodiscard]] std::vector<left_out_sample> left_out(std::size_t seen) const;
    [[nodiscard]] const row_program& program() const noexcept;
    [[nodiscard]] const loader_options& options() const noexcept;
    /// Of what the rows are a function: pipeline and seed.
    [[nodiscard]] std::uint64_t fingerprint() const noexcept;

private:
    class impl;
    std::unique_ptr<impl> impl_;
};

/// Threads that make rows, of so many on this host.
[[nodiscard]] int row_threads(const loader_options& how);

/// Where a loader stands, for checkpoints: the same on all ranks.
struct loader_place {
    std::uint64_t fingerprint = 0, seed = 0, epoch = 0, consumed = 0;

    /// At most 64 bytes.
    [[nodiscard]] std::string save() const;
    /// The place that `saved` is.
    ///   errors  malformed; mismatch: of another pipeline or seed than this one's
    [[nodiscard]] loader_place restored(std::string_view saved, std::string_view pipeline) const;
};

} // namespace detail
} // namespace skein::data

#if SKEIN_HEADER_ONLY
#include <skein/data/detail/loader_core.ipp>
#endif
