// SPDX-License-Identifier: Apache-2.0
#pragma once
// The area under the ROC curve, and average precision: how well scores put the right before the
// wrong, whatever the threshold (source: torchmetrics 1.9, functional/classification/auroc.py and
// average_precision.py).
//
//     auroc{.classes = 10}                                  // one class against the others, macro
//     average_precision{.labels = 5, .average = average::none}
//     exact_auroc{}                                         // binary
//
// auroc and average_precision count scores between thresholds that lie evenly in [0, 1]: their
// memory is constant. exact_auroc and exact_average_precision keep every score as float32, on every
// rank at the end: memory grows with the samples.
//
// Kinds of predictions as in stat_scores.hpp; preds are scores. Scores outside of [0, 1] make a call
// logits, of which the sigmoid is taken, of multiclass the softmax, unless .logits says it.
// Averages: macro, weighted, none; of labels micro too.

#include <skein/core/option_count.hpp>
#include <skein/metrics/average.hpp>
#include <skein/metrics/metric.hpp>
#include <skein/metrics/samples.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace skein::metrics {

namespace detail {

/// What the four have in common.
struct curve_options {
    std::size_t classes = 0, labels = 0;
    metrics::average average = metrics::average::macro;
    std::size_t thresholds = 0; ///< 0: exact
    std::optional<bool> logits{};
    std::optional<std::int64_t> ignore_index{};

    [[nodiscard]] std::size_t width() const noexcept {
        return classes > 0 ? classes : labels > 0 ? labels : 1;
    }
};

template <class M>
[[nodiscard]] curve_options curve_options_of(const M& of) {
    curve_options out{.classes = of.classes,
                      .labels = of.labels,
                      .average = of.average,
                      .logits = of.logits,
                      .ignore_index = of.ignore_index};
    if constexpr (requires { of.thresholds; }) out.thresholds = of.thresholds;
    return out;
}

void begin_binned(summed& counts, const curve_options& options);
void begin_exact(gathered& scores, const curve_options& options);
void add_binned(summed& counts, const curve_options& options, const samples& shown);
void add_exact(gathered& scores, const curve_options& options, const samples& shown);
[[nodiscard]] score binned_auroc(const summed& counts, const curve_options& options);
[[nodiscard]] score binned_precision(const summed& counts, const curve_options& options);
[[nodiscard]] score sorted_auroc(const gathered& scores, const curve_options& options);
[[nodiscard]] score sorted_precision(const gathered& scores, const curve_options& options);

} // namespace detail

/// The area under the curve of true positives over false positives, by trapezia between thresholds.
///   cost    memory of 2 classes (thresholds + 1) numbers, an update of O(scores)
///   result  0 for a class of only right or only wrong scores, as torchmetrics answers
struct auroc {
    static constexpr std::string_view name = "auroc";
    option_count classes = 0, labels = 0;
    metrics::average average = metrics::average::macro;
    option_count thresholds = 200; ///< at least 2
    std::optional<bool> logits{};  ///< what scores are; nothing: each call tells
    std::optional<std::int64_t> ignore_index{};
    summed counts{};

    void begin() { detail::begin_binned(counts, detail::curve_options_of(*this)); }
    void update(const samples& shown) {
        detail::add_binned(counts, detail::curve_options_of(*this), shown);
    }
    [[nodiscard]] score compute() const {
        return detail::binned_auroc(counts, detail::curve_options_of(*this));
    }
};

/// The mean of precision, each threshold as much as recall falls there.
///   cost    as auroc
///   result  0 for a class that is never right
struct average_precision {
    static constexpr std::string_view name = "average_precision";
    option_count classes = 0, labels = 0;
    metrics::average average = metrics::average::macro;
    option_count thresholds = 200; ///< at least 2
    std::optional<bool> logits{};  ///< what scores are; nothing: each call tells
    std::optional<std::int64_t> ignore_index{};
    summed counts{};

    void begin() { detail::begin_binned(counts, detail::curve_options_of(*this)); }
    void update(const samples& shown) {
        detail::add_binned(counts, detail::curve_options_of(*this), shown);
    }
    [[nodiscard]] score compute() const {
        return detail::binned_precision(counts, detail::curve_options_of(*this));
    }
};

/// The area with a threshold at each score there is.
///   cost    memory of (2 + classes) float32 a sample, of labels 2 each, of binary 2; compute() sorts
///   result  as auroc
struct exact_auroc {
    static constexpr std::string_view name = "exact_auroc";
    option_count classes = 0, labels = 0;
    metrics::average average = metrics::average::macro;
    std::optional<bool> logits{}; ///< what scores are; nothing: each call tells
    std::optional<std::int64_t> ignore_index{};
    gathered scores{};

    void begin() { detail::begin_exact(scores, detail::curve_options_of(*this)); }
    void update(const samples& shown) {
        detail::add_exact(scores, detail::curve_options_of(*this), shown);
    }
    [[nodiscard]] score compute() const {
        return detail::sorted_auroc(scores, detail::curve_options_of(*this));
    }
};

/// The mean with a threshold at each score there is.
///   cost    as exact_auroc
///   result  of classes that are never right NaN, which averages leave out; 0 if all targets are
///           class 0, or of labels and binary (torchmetrics)
struct exact_average_precision {
    static constexpr std::string_view name = "exact_average_precision";
    option_count classes = 0, labels = 0;
    metrics::average average = metrics::average::macro;
    std::optional<bool> logits{}; ///< what scores are; nothing: each call tells
    std::optional<std::int64_t> ignore_index{};
    gathered scores{};

    void begin() { detail::begin_exact(scores, detail::curve_options_of(*this)); }
    void update(const samples& shown) {
        detail::add_exact(scores, detail::curve_options_of(*this), shown);
    }
    [[nodiscard]] score compute() const {
        return detail::sorted_precision(scores, detail::curve_options_of(*this));
    }
};

} // namespace skein::metrics

#if SKEIN_HEADER_ONLY
#include <skein/metrics/detail/curves.ipp>
#endif
