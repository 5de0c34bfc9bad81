// SPDX-License-Identifier: Apache-2.0
#pragma once
// What was predicted, element by element: the loops that stat scores and confusion matrices share.

#include <skein/core/error.hpp>
#include <skein/metrics/detail/shapes.hpp>
#include <skein/metrics/samples.hpp>
#include <skein/metrics/stat_scores.hpp>

#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <type_traits>

namespace skein::metrics::detail {

/// The place of the largest of n scores that lie stride apart, the first of several; n for NaN.
template <std::floating_point T>
[[nodiscard]] std::size_t argmax_apart(const T* scores, std::size_t n, std::size_t stride) {
    std::size_t best = 0;
    T most = scores[0];
    bool odd = most != most;
    for (std::size_t i = 1; i < n; ++i) {
        const T one = scores[i * stride];
        odd |= one != one;
        best = one > most ? i : best;
        most = one > most ? one : most;
    }
    return odd ? n : best;
}

/// The same for scores side by side: in lanes, so that it is done in vectors.
template <std::floating_point T>
[[nodiscard]] std::size_t argmax(const T* scores, std::size_t n) {
    constexpr std::size_t lanes = 16;
    if (n < 2 * lanes) return argmax_apart(scores, n, 1);
    using mask = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
    T most[lanes];
    mask odd[lanes] = {};
    for (std::size_t k = 0; k < lanes; ++k) most[k] = scores[k];
    std::size_t i = 0;
    for (; i + lanes <= n; i += lanes)
        for (std::size_t k = 0; k < lanes; ++k) {
            const T one = scores[i + k];
            odd[k] |= one != one ? mask(-1) : mask(0);
            most[k] = one > most[k] ? one : most[k];
        }
    mask any = 0;
    for (std::size_t k = 0; k < lanes; ++k) {
        any |= odd[k];
        most[0] = most[k] > most[0] ? most[k] : most[0];
    }
    for (; i < n; ++i) {
        any |= scores[i] != scores[i] ? mask(-1) : mask(0);
        most[0] = scores[i] > most[0] ? scores[i] : most[0];
    }
    if (any != 0) return n;
    for (i = 0; i + lanes <= n; i += lanes) {
        mask here = 0;
        for (std::size_t k = 0; k < lanes; ++k)
            here |= scores[i + k] == most[0] ? mask(-1) : mask(0);
        if (here != 0) break;
    }
    while (scores[i] != most[0]) ++i;
    return i;
}

/// Whether a score is among the k best of its row; of equal ones the first are better.
template <std::floating_point T>
[[nodiscard]] bool among_best(const T* scores, std::size_t n, std::size_t stride, std::size_t which,
                              std::size_t k) {
    const T mine = scores[which * stride];
    std::size_t better = 0;
    for (std::size_t i = 0; i < n; ++i) {
        const T one = scores[i * stride];
        better += one > mine || (one == mine && i < which) ? 1 : 0;
    }
    return better < k;
}

[[noreturn]] void refuse_top_k(const samples& shown, std::size_t top_k);

/// Multiclass: calls it with target, prediction and weight of each element that counts.
template <class Call>
void each_class_decision(const stat_options& options, const samples& shown, Call call) {
    const auto& [preds, target, weight] = shown;
    const auto classes = options.classes.value();
    const auto shape = check_classes(shown, classes);
    if (options.top_k > 1 && !shape.scores) refuse_top_k(shown, options.top_k);
    const weights counts(shown);
    const labels truth(target);
    const auto each = [&](auto predicted) {
        for (std::size_t i = 0; i < target.size(); ++i) {
            const double w = counts[i];
            const auto label = truth[i];
            if (w == 0 || label == options.ignore_index) continue;
            if (label < 0 || label >= static_cast<std::int64_t>(classes))
                refuse_label("target", target, i, classes, options.ignore_index);
            const auto right = static_cast<std::size_t>(label);
            call(right, predicted(i, right), w);
        }
    };
    const auto by_score = [&]<class T>(const T* scores) {
        each([&, inner = shape.inner](std::size_t i, std::size_t right) {
            const auto from = i / inner * inner * classes + i % inner;
            const T* row = scores + from;
            const auto best = inner == 1 ? argmax(row, classes) : argmax_apart(row, classes, inner);
            if (best == classes) {
                std::size_t c = 0;
                while (row[c * inner] == row[c * inner]) ++c;
                refuse_nan("preds", preds, from + c * inner);
            }
            const bool found = options.top_k > 1 && best != right &&
                               among_best(row, classes, inner, right, options.top_k);
            return found ? right : best;
        });
    };
    if (preds.float32() != nullptr) return by_score(preds.float32());
    if (preds.float64() != nullptr) return by_score(preds.float64());
    const labels said(preds);
    each([&](std::size_t i, std::size_t) {
        const auto label = said[i];
        if (label < 0 || label >= static_cast<std::int64_t>(classes))
            refuse_label("preds", preds, i, classes, {});
        return static_cast<std::size_t>(label);
    });
}

template <std::floating_point T>
[[nodiscard]] T sigmoid(T x) noexcept {
    return T(1) / (T(1) + std::exp(-x));
}

[[noreturn]] void refuse_probabilities();

/// What was said of scores; nothing was: whether any is outside of [0, 1], which probabilities that
/// are said to be some must not be.
template <class Outside>
[[nodiscard]] bool told_logits(std::optional<bool> said, Outside outside) {
    if (said == true) return true;
    const bool found = outside();
    if (found && said == false) refuse_probabilities();
    return found;
}

/// Multilabel and binary: whether any score of a call is outside of [0, 1].
template <std::floating_point T>
[[nodiscard]] bool are_truths_outside(const T* scores, const stat_options& options,
                                      const samples& shown, const weights& counts) {
    const auto n = shown.preds.size();
    if (!counts.given() && !(options.ignore_index && options.counted_tell_logits)) {
        bool outside = false;
        for (std::size_t i = 0; i < n; ++i) outside |= !(scores[i] >= T(0) && scores[i] <= T(1));
        return outside;
    }
    const labels truth(shown.target);
    for (std::size_t i = 0; i < n; ++i) {
        if (scores[i] >= T(0) && scores[i] <= T(1)) continue;
        if (counts[i] == 0) continue;
        if (options.counted_tell_logits && truth[i] == options.ignore_index) continue;
        return true;
    }
    return false;
}
template <std::floating_point T>
[[nodiscard]] bool are_logits(const T* scores, const stat_options& options, const samples& shown,
                              const weights& counts) {
    return told_logits(options.logits,
                       [&] { return are_truths_outside(scores, options, shown, counts); });
}

/// Whether the sigmoid of a logit is above the threshold, for which it is seldom computed.
template <std::floating_point T>
class above_threshold {
public:
    above_threshold(double threshold, bool logits) : threshold_(static_cast<T>(threshold)) {
        if (!logits) {
            least_ = most_ = threshold_;
        } else if (threshold > 0.01 && threshold < 0.99) {
            const double middle = std::log(threshold / (1 - threshold));
            least_ = static_cast<T>(middle - 1e-3);
            most_ = static_cast<T>(middle + 1e-3);
        }
    }
    [[nodiscard]] bool operator()(T score) const noexcept {
        if (score > most_) return true;
        return score > least_ && sigmoid(score) > threshold_;
    }

private:
    T threshold_;
    T least_ = -std::numeric_limits<T>::infinity(), most_ = std::numeric_limits<T>::infinity();
};

/// Multilabel and binary: calls it with label, target, prediction and weight of each element that
/// counts.
template <class Call>
void each_truth_decision(const stat_options& options, const samples& shown, Call call) {
    const auto& [preds, target, weight] = shown;
    const auto width = options.width();
    const auto shape = check_truths(shown, width);
    const weights counts(shown);
    const labels truth(target);
    const auto each = [&](auto predicted) {
        std::size_t i = 0;
        for (std::size_t n = 0; n < shape.outer; ++n)
            for (std::size_t label = 0; label < width; ++label)
                for (std::size_t k = 0; k < shape.inner; ++k, ++i) {
                    const double w = counts[i];
                    const auto is = truth[i];
                    if (w == 0 || is == options.ignore_index) continue;
                    if (is != 0 && is != 1)
                        refuse_label("target", target, i, 2, options.ignore_index);
                    call(label, static_cast<std::size_t>(is), predicted(i) ? 1u : 0u, w);
                }
    };
    const auto by_score = [&]<class T>(const T* scores) {
        const above_threshold<T> above(options.threshold,
                                       are_logits(scores, options, shown, counts));
        each([&](std::size_t i) {
            if (scores[i] != scores[i]) refuse_nan("preds", preds, i);
            return above(scores[i]);
        });
    };
    if (preds.float32() != nullptr) return by_score(preds.float32());
    if (preds.float64() != nullptr) return by_score(preds.float64());
    const labels said(preds);
    each([&](std::size_t i) {
        if (said[i] != 0 && said[i] != 1) refuse_label("preds", preds, i, 2, {});
        return said[i] == 1;
    });
}

} // namespace skein::metrics::detail
