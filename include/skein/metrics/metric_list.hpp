// SPDX-License-Identifier: Apache-2.0
#pragma once
// The metrics of one stage (training, or one evaluation set): updated together, merged together.
//
// A list of each rank has the same metrics in the same order. pack() gives all their arrays as two
// arrays of float64 (sums; maxima, with minima negated) and the gathered rows as bytes; merged over
// ranks they come back by add(). Two lists of one layout also add up without ranks: the windows of
// an epoch.
//
//     metric_list mine;
//     mine.add("accuracy", accuracy{.classes = 10}).add("confusion", confusion_matrix{.classes = 10});
//     mine.update({.preds = ..., .target = ...});
//     auto packed = mine.pack();
//     all_reduce(packed.sums, sum); all_reduce(packed.maxima, max);   // rows: all_gather, in order
//     merged.add(packed);
//     merged.compute();

#include <skein/core/bytes.hpp>
#include <skein/core/error.hpp>
#include <skein/metrics/metric.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace skein::metrics {

/// All arrays of a list, as they travel.
struct packed_state {
    std::vector<double> sums{};   ///< the first one: calls of update(), each counted once
    std::vector<double> maxima{}; ///< and minima, negated
    byte_buffer rows{};           ///< per array of rows: u64 count, then float32, little-endian
};

/// Where the arrays stood, to go back to it. The arrays of fixed size, and lengths of the others.
struct list_mark {
    std::vector<double> fixed{};
    std::vector<std::size_t> rows{};
    double updates = 0.0;
};

/// See above. Not thread-safe.
class metric_list {
public:
    /// Bytes of arrays of fixed size that the metrics of one stage may have.
    static constexpr std::size_t most_bytes = std::size_t{256} << 20;

    /// Throws errc::already_exists for a name that is there, usage for options that make no sense
    /// and for arrays beyond most_bytes.
    metric_list& add(any_metric made);
    template <metric M>
    metric_list& add(std::string name, M made) {
        return add(any_metric(std::move(name), std::move(made)));
    }

    [[nodiscard]] bool empty() const noexcept { return metrics_.empty(); }
    [[nodiscard]] std::size_t size() const noexcept { return metrics_.size(); }
    [[nodiscard]] std::vector<std::string> names() const;

    /// Shows all metrics the same samples. Throws what they throw, with the metric's name.
    void update(const samples& shown);
    /// Only the one of that name; errc::usage with the names there are.
    void update(std::string_view name, const samples& shown);
    /// Calls of update(), added up over what was merged in.
    [[nodiscard]] double updates() const noexcept { return updates_; }

    void clear() noexcept;
    /// Where the arrays stand now; `at` keeps its memory from one mark to the next.
    void mark(list_mark& at);
    void go_back(const list_mark& to);

    /// Name, type, options and sizes of each, for comparing ranks and checkpoints.
    [[nodiscard]] std::vector<std::pair<std::string, std::string>> layout();

    [[nodiscard]] packed_state pack();
    /// Whether any has rows to gather: the same on all ranks.
    [[nodiscard]] bool has_rows();
    /// Adds what was packed by a list of the same layout, or by several: sums and maxima reduced,
    /// rows once for each rank.
    ///   errors  mismatch for other sizes; malformed for rows that are no rows
    void add(const packed_state& more);
    void add_rows(byte_span rows);
    /// Adds another list of the same layout.
    void add(metric_list& other) { add(other.pack()); }

    /// In the order of add(). Throws errc::usage for a score whose numbers do not fill its shape.
    [[nodiscard]] std::vector<score> compute() const;

    /// For a checkpoint: all arrays, and what they are of.
    [[nodiscard]] byte_buffer save();
    /// errc::mismatch with both layouts when it was saved by other metrics; malformed.
    void restore(byte_span saved);

private:
    std::vector<any_metric> metrics_;
    double updates_ = 0.0;
};

} // namespace skein::metrics

#if SKEIN_HEADER_ONLY
#include <skein/metrics/detail/metric_list.ipp>
#endif
