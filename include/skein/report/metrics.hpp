// SPDX-License-Identifier: Apache-2.0
#pragma once
// Metrics that know how to be merged: over the steps of a window and over the ranks.
//
// A loss is a mean weighted by samples, a token count is a sum, a peak is a max. Each rank adds to
// its own metric_set; all metrics of all ranks are then merged by two all-reduces of packed float64
// (one sum, one max; min travels negated), never by one collective per metric.
//
//     metric_set m;
//     m.mean("loss", loss, samples).sum("tokens", n).last("lr", lr);
//     auto packed = m.pack(rank);                      // packed.sums, packed.maxima
//     all_reduce(packed.sums, sum); all_reduce(packed.maxima, max);
//     auto merged = m.unpack(packed).value();          // merged[0].name == "loss" ...
//
// Ranks need not report the same names: join() makes the names and kinds that all of them know, and
// a name counts for those that reported it. NaN stays: a broken number is not hidden by a good one
// beside it.

#include <skein/core/bytes.hpp>
#include <skein/core/error.hpp>
#include <skein/core/result.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
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
    std::string name{};
    double value = 0.0;

    friend bool operator==(const metric_value&, const metric_value&) = default;
};

/// Merged numbers with a shape, e.g. one per class: for files of JSON lines and for programs.
struct metric_array {
    std::string name{};
    std::vector<std::size_t> shape{};
    std::vector<double> values{}; ///< row-major

    friend bool operator==(const metric_array&, const metric_array&) = default;
};

/// A number and how it is merged; a number alone is a mean.
struct merged_number {
    metric_kind kind = metric_kind::mean;
    double value = 0.0;
    std::optional<double> weight{}; ///< of a mean; 1 without

    merged_number(double mean) : value(mean) {}
    merged_number(metric_kind how, double number, std::optional<double> counts = {})
        : kind(how), value(number), weight(counts) {}
};
[[nodiscard]] inline merged_number mean(double value, double weight) {
    return {metric_kind::mean, value, weight};
}
[[nodiscard]] inline merged_number sum(double value) { return {metric_kind::sum, value}; }
[[nodiscard]] inline merged_number max(double value) { return {metric_kind::max, value}; }
[[nodiscard]] inline merged_number min(double value) { return {metric_kind::min, value}; }
[[nodiscard]] inline merged_number last(double value) { return {metric_kind::last, value}; }

/// {"loss", 0.3} or {"seen", sum(64)}.
using named_number = std::pair<std::string_view, merged_number>;

/// All metrics of one rank as float64 for two all-reduces. Both lengths are a multiple of
/// metric_set::pack_unit, so ranks that report different names still meet in the same collective
/// and are told by unpack() instead of hanging.
struct packed_metrics {
    std::vector<double> sums;   ///< all-reduce with sum
    std::vector<double> maxima; ///< all-reduce with max
};

/// The metrics of one rank since the last clear(). Order of first use is order of output.
class metric_set {
public:
    static constexpr std::size_t pack_unit = 64;

    metric_set() = default;
    /// Refuses some names, and those that begin with one that ends in '/': errc::usage at the first
    /// report of one. The list outlives the set.
    explicit metric_set(std::span<const std::string_view> taken) : taken_(taken) {}

    /// A mean without a weight counts as much as weigh() says. Names: see require_metric_name().
    metric_set& mean(std::string_view name, double value, std::optional<double> weight = {});
    metric_set& sum(std::string_view name, double value);
    metric_set& max(std::string_view name, double value);
    metric_set& min(std::string_view name, double value);
    metric_set& last(std::string_view name, double value);
    /// The same by a kind chosen at run time; weight counts only for a mean.
    metric_set& add(metric_kind kind, std::string_view name, double value,
                    std::optional<double> weight = {});
    /// What a mean without a weight of its own counts from here on: the samples of the batch in
    /// hand, so that a short batch counts less. 1 until it is said, and again with 1.
    void weigh(double each) noexcept { each_ = each; }

    [[nodiscard]] bool empty() const noexcept { return slots_.empty(); }
    [[nodiscard]] std::size_t size() const noexcept { return slots_.size(); }
    void clear() noexcept { slots_.clear(); }

    /// Adds another set's metrics behind its own; they must have other names.
    metric_set& append(const metric_set& others);

    /// Names and kinds as text, and a set of the same that counts nothing yet: for a rank that has
    /// nothing to report in a merge that all take part in.
    [[nodiscard]] std::string layout() const;
    [[nodiscard]] static metric_set with_layout(std::string_view layout);

    /// Adds the names that only `others` has, counting nothing.
    metric_set& know(const metric_set& others);
    /// True when `other` has no name or kind that is not here.
    [[nodiscard]] bool covers(const metric_set& other) const noexcept;
    /// The layouts of all ranks as one set that counts nothing yet: rank 0's names, then those that
    /// only later ranks have. errc::mismatch with the name and both ranks when two have it as
    /// another kind.
    [[nodiscard]] static result<metric_set> join(std::span<const std::string> layouts);

    /// This rank's own numbers, not merged over ranks; those that were reported.
    [[nodiscard]] std::vector<metric_value> values() const;

    /// Hash of names and kinds in order: equal on all ranks or merging fails.
    [[nodiscard]] std::uint64_t layout_hash() const noexcept;

    /// Layout of `sums`: per mean (value * weight, weight), per sum its value, per last its value
    /// on rank 0 and 0 elsewhere. Of `maxima`: two halves of the layout hash, the same negated,
    /// then per max its value and per min its negated value, and for each name who reported it: the
    /// lowest rank is the largest number. Zeros pad both.
    [[nodiscard]] packed_metrics pack(int rank) const;

    /// Where rank 0 did not report a `last`: this rank's value, when it is the lowest that did,
    /// else 0; to be summed over ranks and given to put_lasts(). Mostly nothing; as many on every
    /// rank.
    [[nodiscard]] std::vector<double> lasts_of(const packed_metrics& merged, int rank) const;
    void put_lasts(packed_metrics& merged, std::span<const double> summed) const;

    /// The merged numbers that some rank reported, the same on every rank. errc::mismatch when the
    /// ranks packed other names.
    [[nodiscard]] result<std::vector<metric_value>> unpack(const packed_metrics& merged) const;

    /// "loss (mean), tokens (sum)" for messages.
    [[nodiscard]] std::string names() const;

private:
    struct slot_type {
        std::string name;
        metric_kind kind = metric_kind::mean;
        double value = 0.0;  // mean: sum of value * weight
        double weight = 0.0; // mean only
        bool used = false;   // reported, not only known
    };
    slot_type& slot(std::string_view name, metric_kind kind);
    slot_type& reported(std::string_view name, metric_kind kind);
    [[nodiscard]] const slot_type* find(std::string_view name) const noexcept;
    /// All ranks have packed the same hash.
    [[nodiscard]] static bool same_names(const packed_metrics& merged) noexcept;
    /// Where among the maxima it stands who reported the first name.
    [[nodiscard]] std::size_t first_reporter() const noexcept;
    /// Calls it with each `last` that a rank other than 0 gives: its number among the sums, that
    /// rank, its slot.
    template <class Call>
    void each_late(const packed_metrics& merged, Call call) const;

    double each_ = 1.0; // weight of a mean that has none
    std::vector<slot_type> slots_;
    std::span<const std::string_view> taken_;
};

/// Errors: usage for a name that a line of a table or a plot cannot have: an empty one, and one with
/// control characters or bytes that are not UTF-8.
void require_metric_name(std::string_view name);

/// The names of these numbers for a message: `there are: "loss", "val_loss"`; "there are none"
/// without any.
[[nodiscard]] std::string names_of(const std::vector<metric_value>& values);

/// The value called `name`, or nothing.
[[nodiscard]] const double* find_metric(const std::vector<metric_value>& values,
                                        std::string_view name) noexcept;

} // namespace skein::report

#if SKEIN_HEADER_ONLY
#include <skein/report/detail/metrics.ipp>
#endif
