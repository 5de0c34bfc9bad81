// SPDX-License-Identifier: Apache-2.0
#pragma once
// What accuracy, precision, recall and their like are made of: how often each class or label was
// predicted rightly and wrongly. A metric over them is its formula:
//
//     struct miss_rate {
//         option_count classes = 0;
//         skein::metrics::summed counts{};
//         stat_options options() const { return {.classes = classes}; }
//
//         void begin() { begin_stat_scores(counts, options()); }
//         void update(const samples& s) { add_stat_scores(counts, options(), s); }
//         score compute() const {
//             return average_stats(counts, options(), average::macro,
//                                  [](const stat& s) { return ratio(s.fn, s.tp + s.fn); });
//         }
//     };
//
// Three kinds of predictions, as torchmetrics has them (source of all rules here: torchmetrics 1.9,
// functional/classification/stat_scores.py):
//   multiclass  .classes = C. Scores [N, C, ...] or labels [N, ...]; target labels [N, ...]
//   multilabel  .labels = L. Scores or truths [N, L, ...]; target truths of the same shape
//   binary      neither. Scores or truths of any shape; target truths of the same shape
// Scores of multilabel and binary are probabilities, unless one of a call is outside of [0, 1]: then
// all of that call are logits, of which the sigmoid is taken. So logits that all happen to lie within
// [0, 1] are taken for probabilities, and what a sample counts depends on which others are shown with
// it: on the batch and on the number of ranks. Say what they are: .logits = true.

#include <skein/core/option_count.hpp>
#include <skein/metrics/average.hpp>
#include <skein/metrics/metric.hpp>
#include <skein/metrics/samples.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace skein::metrics {

/// How predictions are read.
struct stat_options {
    option_count classes = 0; ///< of multiclass, at least 2
    option_count labels = 0;  ///< of multilabel, at least 2
    option_count top_k = 1;   ///< multiclass: right when among so many best
    double threshold = 0.5;   ///< multilabel, binary: true is above it
    /// multilabel, binary: whether scores are logits, in all calls; nothing: each call tells, as
    /// above. Of what is said to be probabilities a score outside of [0, 1] is an error.
    std::optional<bool> logits{};
    std::optional<std::int64_t> ignore_index{}; ///< elements of this target do not count
    double zero_division = 0;                   ///< what a division by 0 is said to be: 0 or 1
    /// binary: whether scores are logits is looked up in those that count, not in all.
    bool counted_tell_logits = false;

    /// Of scores: classes, or labels, or 1.
    [[nodiscard]] std::size_t width() const noexcept {
        return classes > 0 ? classes.value() : labels > 0 ? labels.value() : 1;
    }
};

/// The options that a metric has as fields.
template <class M>
[[nodiscard]] stat_options stat_options_of(const M& of) {
    stat_options out{.classes = of.classes,
                     .labels = of.labels,
                     .threshold = of.threshold,
                     .ignore_index = of.ignore_index};
    if constexpr (requires { of.logits; }) out.logits = of.logits;
    if constexpr (requires { of.top_k; }) out.top_k = of.top_k;
    if constexpr (requires { of.zero_division; }) out.zero_division = of.zero_division;
    return out;
}

/// Decisions about one class or label, each as often as it counts.
struct stat {
    double tp = 0; ///< predicted, and the target
    double fp = 0; ///< predicted, and not the target
    double tn = 0; ///< neither
    double fn = 0; ///< not predicted, and the target
};

/// a / b, or what a division by 0 is said to be.
[[nodiscard]] constexpr double ratio(double a, double b, double zero_division = 0) noexcept {
    return b == 0 ? zero_division : a / b;
}

/// errc::usage for options that make no sense.
void check_stat_options(const stat_options& options);

/// Sizes the array. errc::usage for options that make no sense.
void begin_stat_scores(summed& counts, const stat_options& options);

/// Counts the decisions of one call of update().
///   errors  invalid_argument for shapes, types and labels that do not fit; not_finite for NaN.
///           Then part of the samples may be counted.
///   cost    O(scores), no allocation
void add_stat_scores(summed& counts, const stat_options& options, const samples& shown);

/// Per class or label; of binary one.
[[nodiscard]] std::vector<stat> stats_of(const summed& counts, const stat_options& options);
[[nodiscard]] stat sum_of(const std::vector<stat>& each) noexcept;

/// Which classes a macro average leaves out.
enum class absent : std::uint8_t {
    unseen,   ///< neither target nor predicted
    untarget, ///< never the target
};

namespace detail {
/// The average of values per class; classes that never occur have no part in a macro average of
/// multiclass.
[[nodiscard]] score average_of(const std::vector<stat>& each, std::vector<double> values,
                               const stat_options& options, average how, absent left_out);
} // namespace detail

/// The formula over each class or label, averaged; of binary: over the one there is.
///   left_out  classes that have no part in a macro average of multiclass. Labels always have.
///   result    0 where nothing was counted
template <class Formula>
[[nodiscard]] score average_stats(const summed& counts, const stat_options& options, average how,
                                  Formula formula, absent left_out = absent::unseen) {
    const auto each = stats_of(counts, options);
    if (options.width() == 1) return formula(each[0]);
    if (how == average::micro) return formula(sum_of(each));
    std::vector<double> values;
    for (const auto& one : each) values.push_back(formula(one));
    return detail::average_of(each, std::move(values), options, how, left_out);
}

} // namespace skein::metrics

#if SKEIN_HEADER_ONLY
#include <skein/metrics/detail/stat_scores.ipp>
#endif
