// SPDX-License-Identifier: Apache-2.0
#pragma once
// Accuracy, precision, recall, F-beta, specificity and Jaccard index, as torchmetrics 1.9 answers
// (source: its functional/classification). What they are shown, and what their first options mean:
// stat_scores.hpp.
//
//     accuracy{.classes = 10}
//     accuracy{.classes = 1000, .top_k = 5}
//     f1{.classes = 10, .average = average::macro}
//     recall{}                                       // binary
//
// Weights count as so many samples. Without samples each is 0, but the averages of jaccard, which
// are NaN.

#include <skein/core/error.hpp>
#include <skein/core/option_count.hpp>
#include <skein/metrics/average.hpp>
#include <skein/metrics/stat_scores.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace skein::metrics {

/// What was predicted rightly. Multiclass: tp / (tp + fn); of a class, that is its recall.
/// Multilabel and binary: (tp + tn) / (tp + tn + fp + fn).
struct accuracy {
    static constexpr std::string_view name = "accuracy";
    option_count classes = 0, labels = 0;
    metrics::average average = metrics::average::micro;
    option_count top_k = 1;
    double threshold = 0.5;
    std::optional<bool> logits{}; ///< of multilabel and binary: see stat_options
    std::optional<std::int64_t> ignore_index{};
    summed counts{};

    void begin() { begin_stat_scores(counts, stat_options_of(*this)); }
    void update(const samples& shown) { add_stat_scores(counts, stat_options_of(*this), shown); }
    [[nodiscard]] score compute() const {
        const auto formula = [this](const stat& s) {
            if (classes > 0) return ratio(s.tp, s.tp + s.fn);
            return ratio(s.tp + s.tn, s.tp + s.tn + s.fp + s.fn);
        };
        return average_stats(counts, stat_options_of(*this), average, formula,
                             top_k > 1 ? absent::untarget : absent::unseen);
    }
};

/// How much of what was predicted is right: tp / (tp + fp).
struct precision {
    static constexpr std::string_view name = "precision";
    option_count classes = 0, labels = 0;
    metrics::average average = metrics::average::micro;
    option_count top_k = 1;
    double threshold = 0.5;
    std::optional<bool> logits{}; ///< of multilabel and binary: see stat_options
    std::optional<std::int64_t> ignore_index{};
    double zero_division = 0; ///< of what was never predicted: 0 or 1
    summed counts{};

    void begin() { begin_stat_scores(counts, stat_options_of(*this)); }
    void update(const samples& shown) { add_stat_scores(counts, stat_options_of(*this), shown); }
    [[nodiscard]] score compute() const {
        const auto formula = [this](const stat& s) {
            return ratio(s.tp, s.tp + s.fp, zero_division);
        };
        return average_stats(counts, stat_options_of(*this), average, formula,
                             top_k > 1 ? absent::untarget : absent::unseen);
    }
};

/// How much of what should be predicted is: tp / (tp + fn).
struct recall {
    static constexpr std::string_view name = "recall";
    option_count classes = 0, labels = 0;
    metrics::average average = metrics::average::micro;
    option_count top_k = 1;
    double threshold = 0.5;
    std::optional<bool> logits{}; ///< of multilabel and binary: see stat_options
    std::optional<std::int64_t> ignore_index{};
    double zero_division = 0; ///< of what was never a target: 0 or 1
    summed counts{};

    void begin() { begin_stat_scores(counts, stat_options_of(*this)); }
    void update(const samples& shown) { add_stat_scores(counts, stat_options_of(*this), shown); }
    [[nodiscard]] score compute() const {
        const auto formula = [this](const stat& s) {
            return ratio(s.tp, s.tp + s.fn, zero_division);
        };
        return average_stats(counts, stat_options_of(*this), average, formula,
                             top_k > 1 ? absent::untarget : absent::unseen);
    }
};

/// (1 + b2) tp / ((1 + b2) tp + b2 fn + fp) with b2 = beta * beta.
[[nodiscard]] constexpr double fbeta_of(const stat& s, double beta, double zero_division) noexcept {
    const double b2 = beta * beta;
    return ratio((1 + b2) * s.tp, (1 + b2) * s.tp + b2 * s.fn + s.fp, zero_division);
}

/// The harmonic mean of precision and recall, which counts recall beta times as much.
struct fbeta {
    static constexpr std::string_view name = "fbeta";
    double beta = 1; ///< above 0
    option_count classes = 0, labels = 0;
    metrics::average average = metrics::average::micro;
    option_count top_k = 1;
    double threshold = 0.5;
    std::optional<bool> logits{}; ///< of multilabel and binary: see stat_options
    std::optional<std::int64_t> ignore_index{};
    double zero_division = 0; ///< of what was neither predicted nor a target: 0 or 1
    summed counts{};

    void begin();
    void update(const samples& shown) { add_stat_scores(counts, stat_options_of(*this), shown); }
    [[nodiscard]] score compute() const {
        const auto formula = [this](const stat& s) { return fbeta_of(s, beta, zero_division); };
        return average_stats(counts, stat_options_of(*this), average, formula);
    }
};

/// F-beta with beta 1: 2 tp / (2 tp + fn + fp).
struct f1 {
    static constexpr std::string_view name = "f1";
    option_count classes = 0, labels = 0;
    metrics::average average = metrics::average::micro;
    option_count top_k = 1;
    double threshold = 0.5;
    std::optional<bool> logits{}; ///< of multilabel and binary: see stat_options
    std::optional<std::int64_t> ignore_index{};
    double zero_division = 0; ///< of what was neither predicted nor a target: 0 or 1
    summed counts{};

    void begin() { begin_stat_scores(counts, stat_options_of(*this)); }
    void update(const samples& shown) { add_stat_scores(counts, stat_options_of(*this), shown); }
    [[nodiscard]] score compute() const {
        const auto formula = [this](const stat& s) { return fbeta_of(s, 1, zero_division); };
        return average_stats(counts, stat_options_of(*this), average, formula);
    }
};

/// How much of what should not be predicted is not: tn / (tn + fp).
struct specificity {
    static constexpr std::string_view name = "specificity";
    option_count classes = 0, labels = 0;
    metrics::average average = metrics::average::micro;
    option_count top_k = 1;
    double threshold = 0.5;
    std::optional<bool> logits{}; ///< of multilabel and binary: see stat_options
    std::optional<std::int64_t> ignore_index{};
    summed counts{};

    void begin() { begin_stat_scores(counts, stat_options_of(*this)); }
    void update(const samples& shown) { add_stat_scores(counts, stat_options_of(*this), shown); }
    [[nodiscard]] score compute() const {
        const auto formula = [](const stat& s) { return ratio(s.tn, s.tn + s.fp); };
        return average_stats(counts, stat_options_of(*this), average, formula);
    }
};

/// Of what was predicted or a target, how much was both: tp / (tp + fp + fn).
struct jaccard {
    static constexpr std::string_view name = "jaccard";
    option_count classes = 0, labels = 0;
    metrics::average average = metrics::average::macro;
    double threshold = 0.5;
    std::optional<bool> logits{}; ///< of multilabel and binary: see stat_options
    std::optional<std::int64_t> ignore_index{};
    double zero_division = 0; ///< of what was neither predicted nor a target: 0 or 1
    summed counts{};

    void begin() { begin_stat_scores(counts, stat_options_of(*this)); }
    void update(const samples& shown) {
        auto options = stat_options_of(*this);
        options.counted_tell_logits = options.width() == 1;
        add_stat_scores(counts, options, shown);
    }
    [[nodiscard]] score compute() const;
};

} // namespace skein::metrics

#if SKEIN_HEADER_ONLY
#include <skein/metrics/detail/classification.ipp>
#endif
