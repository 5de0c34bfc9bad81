// SPDX-License-Identifier: Apache-2.0
#pragma once
// Metrics that know how to be merged: over the steps of a window and over the ranks.
//
// A loss is a mean weighted by samples, a token count is a sum, a peak is a max. Each rank adds to its
// own metric_set; all metrics of all ranks are then merged by two all-reduces of packed float64
// (one sum, one max; min travels negated), never by one collective per metric.
//
//     metric_set m;
//     m.mean("loss", loss, samples).sum("tokens", n).last("lr", lr);
//     auto packed = m.pack(rank);                      // packed.sums, packed.maxima
//     all_reduce(packed.sums, sum); all_reduce(packed.maxima, max);
//     auto merged = m.unpack(packed).value();          // merged[0].name == "loss" ...

#include <skein/core/bytes.hpp>
#include <skein/core/error.hpp>
#include <skein/core/result.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace skein::report {

/// How values of one metric are put together.
enum class metric_kind : std::uint8_t {
    mean, ///< weighted mean: sum(value * weight) / sum(weight)
    sum,
    max,
    min,
    last, ///< the newest value of rank 0 (learning rate, step number)
};

using skein::to_string; // the overload below must not hide those of the core

/// The name of a kind, e.g. "mean".
[[nodiscard]] constexpr std::string_view to_string(metric_kind kind) noexcept {
    switch (kind) {
    case metric_kind::mean: return "mean";
    case metric_kind::sum: return "sum";
    case metric_kind::max: return "max";
    case metric_kind::min: return "min";
    case metric_kind::last: return "last";
    }
    return "unknown";
}

/// One merged number, ready for a file or a screen.
struct metric_value {
    std::string name;
    double value = 0.0;

    friend bool operator==(const metric_value&, const metric_value&) = default;
};

/// All metrics of one rank as float64 for two all-reduces. Both lengths are a multiple of
/// metric_set::pack_unit, so ranks that report different names still meet in the same collective and
/// are told by unpack() instead of hanging.
struct packed_metrics {
    std::vector<double> sums;   ///< all-reduce with sum
    std::vector<double> maxima; ///< all-reduce with max
};

/// The metrics of one rank since the last clear(). Order of first use is order of output.
class metric_set {
public:
    static constexpr std::size_t pack_unit = 64;

    metric_set() = default;
    /// Refuses some names: errc::usage at the first report of one. The list outlives the set.
    explicit metric_set(std::span<const std::string_view> taken) : taken_(taken) {}

    metric_set& mean(std::string_view name, double value, double weight = 1.0);
    metric_set& sum(std::string_view name, double value);
    metric_set& max(std::string_view name, double value);
    metric_set& min(std::string_view name, double value);
    metric_set& last(std::string_view name, double value);
    /// The same by a kind chosen at run time; weight counts only for a mean.
    metric_set& add(metric_kind kind, std::string_view name, double value, double weight = 1.0);

    [[nodiscard]] bool empty() const noexcept { return slots_.empty(); }
    [[nodiscard]] std::size_t size() const noexcept { return slots_.size(); }
    void clear() noexcept { slots_.clear(); }

    /// Adds another set's metrics behind its own; they must have other names.
    metric_set& append(const metric_set& others);

    /// Names and kinds as text, and a set of the same that counts nothing yet: for a rank that has
    /// nothing to report in a merge that all take part in.
    [[nodiscard]] std::string layout() const;
    [[nodiscard]] static metric_set with_layout(std::string_view layout);

    /// This rank's own numbers, not merged over ranks.
    [[nodiscard]] std::vector<metric_value> values() const;

    /// Hash of names and kinds in order: equal on all ranks or merging fails.
    [[nodiscard]] std::uint64_t layout_hash() const noexcept;

    /// Layout of `sums`: per mean (value * weight, weight), per sum its value, per last its value on
    /// rank 0 and 0 elsewhere. Of `maxima`: two halves of the layout hash, the same negated, then per
    /// max its value and per min its negated value. Zeros pad both.
    [[nodiscard]] packed_metrics pack(int rank) const;

    /// The merged numbers, the same on every rank. errc::mismatch when the ranks packed other names.
    [[nodiscard]] result<std::vector<metric_value>> unpack(const packed_metrics& merged) const;

    /// "loss (mean), tokens (sum)" for messages.
    [[nodiscard]] std::string names() const;

private:
    struct slot_type {
        std::string name;
        metric_kind kind = metric_kind::mean;
        double value = 0.0;  // mean: sum of value * weight
        double weight = 0.0; // mean only
    };
    slot_type& slot(std::string_view name, metric_kind kind);

    std::vector<slot_type> slots_;
    std::span<const std::string_view> taken_;
};

/// The value called `name`, or nothing.
[[nodiscard]] const double* find_metric(const std::vector<metric_value>& values,
                                        std::string_view name) noexcept;

} // namespace skein::report

#if SKEIN_HEADER_ONLY
#include <skein/report/detail/metrics.ipp>
#endif
