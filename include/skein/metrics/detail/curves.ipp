// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/metrics/curves.hpp>.
//
// Counts: for each class or label, first of wrong and then of right scores, how many lie at or above
// exactly 0, 1, ... thresholds of them. Rows: of multiclass target, weight and all scores; of labels
// and binary score and weight of each, which is negative for what is wrong.

#include <skein/core/error.hpp>
#include <skein/metrics/detail/decisions.hpp>
#include <skein/metrics/detail/fast_exp.hpp>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <span>
#include <vector>

#include <fmt/core.h>

namespace skein::metrics::detail {

SKEIN_INLINE void check_curve_options(const curve_options& o) {
    check_stat_options({.classes = o.classes, .labels = o.labels});
    if (o.classes > 0 && o.average == average::micro)
        throw error(errc::usage, "the average micro of classes has no curve")
            .with_hint("give macro, weighted or none; micro is for labels");
}

SKEIN_INLINE void begin_binned(summed& counts, const curve_options& o) {
    check_curve_options(o);
    if (o.thresholds < 2)
        throw error(errc::usage, fmt::format(".thresholds = {}", o.thresholds))
            .with_hint("give at least 2, e.g. 200");
    counts.resize(2 * o.width() * (o.thresholds + 1));
}

SKEIN_INLINE void begin_exact(gathered& scores, const curve_options& o) {
    check_curve_options(o);
    scores.resize(o.classes > 0 ? o.classes + 2 : 2 * o.width());
}

/// torch.linspace(0, 1, n)[i] bit by bit, on machines with fused multiply and add.
[[nodiscard]] inline float threshold_at(std::size_t i, std::size_t n) noexcept {
    const float step = 1.0f / static_cast<float>(n - 1);
    if (i < n / 2) return step * static_cast<float>(i);
    return static_cast<float>(1.0 - static_cast<double>(step) * static_cast<double>(n - 1 - i));
}

/// How many of n thresholds are at most a score in [0, 1]; they are made once for a call.
template <std::floating_point T>
class threshold_table {
public:
    explicit threshold_table(std::size_t n) : last_(static_cast<T>(n - 1)) {
        for (std::size_t i = 0; i < n; ++i) at_.push_back(static_cast<T>(threshold_at(i, n)));
        at_.push_back(std::numeric_limits<T>::infinity());
    }
    [[nodiscard]] std::size_t below(T score) const noexcept {
        auto i = static_cast<std::size_t>(score * last_);
        while (at_[i + 1] <= score) ++i;
        while (i > 0 && at_[i] > score) --i;
        return at_[i] <= score ? i + 1 : i;
    }

private:
    std::vector<T> at_; // and one that no score reaches
    T last_;
};

[[noreturn]] SKEIN_INLINE void refuse_curve(const samples& shown) {
    refuse_shapes(shown, "scores with labels", "a curve is of scores, which are floating");
}

/// Multiclass: whether any score of the samples that count is outside of [0, 1].
template <std::floating_point T>
[[nodiscard]] bool are_classes_outside(const T* scores, const curve_options& o,
                                       const class_shape& shape, const samples& shown,
                                       const weights& counts) {
    const auto outside = [](T one) { return !(one >= T(0) && one <= T(1)); };
    const auto size = shown.target.size(), stride = shape.inner;
    bool found = false;
    if (!counts.given() && !o.ignore_index) {
        for (std::size_t at = 0; at < size * o.classes; ++at) found |= outside(scores[at]);
        return found;
    }
    const labels truth(shown.target);
    for (std::size_t i = 0; i < size && !found; ++i) {
        if (counts[i] == 0 || truth[i] == o.ignore_index) continue;
        const T* row = scores + i / stride * stride * o.classes + i % stride;
        for (std::size_t c = 0; c < o.classes; ++c) found |= outside(row[c * stride]);
    }
    return found;
}

/// Multiclass: calls it with each class's score, and when a sample is done.
template <std::floating_point T, class Begin, class Each>
void each_class_score(const T* scores, const curve_options& o, const samples& shown, Begin begin,
                      Each each) {
    const auto& target = shown.target;
    const auto shape = check_classes(shown, o.classes);
    if (!shape.scores) refuse_curve(shown);
    const weights counts(shown);
    const labels truth(target);
    const bool logits =
        told_logits(o.logits, [&] { return are_classes_outside(scores, o, shape, shown, counts); });
    for (std::size_t i = 0; i < target.size(); ++i) {
        const double w = counts[i];
        const auto label = truth[i];
        if (w == 0 || label == o.ignore_index) continue;
        if (label < 0 || label >= static_cast<std::int64_t>(o.classes))
            refuse_label("target", target, i, o.classes, o.ignore_index);
        const auto stride = shape.inner;
        const auto from = i / stride * stride * o.classes + i % stride;
        const T* row = scores + from;
        for (std::size_t c = 0; logits && c < o.classes; ++c) // NaN is outside of [0, 1]
            if (row[c * stride] != row[c * stride])
                refuse_nan("preds", shown.preds, from + c * stride);
        const T most = logits ? largest_of(row, o.classes, stride) : T(0);
        const double sum = logits ? sum_of_exp(row, o.classes, stride, most) : 1;
        if (sum != sum)
            throw error(errc::not_finite,
                        fmt::format("{} and the other scores of its row have no softmax",
                                    place("preds", shown.preds, from)))
                .with_hint("one of them is infinite, or all are: look at the model's output");
        begin(static_cast<std::size_t>(label), w);
        const T share = static_cast<T>(1 / sum);
        for (std::size_t c = 0; c < o.classes; ++c) {
            const T one = row[c * stride];
            each(c, logits ? std::min(fast_exp(one - most) * share, T(1)) : one);
        }
    }
}

/// Multilabel and binary: calls it with label, truth, score and weight of each element; a weight of
/// 0 for those that do not count.
template <std::floating_point T, class Call>
void each_truth_score(const T* scores, const curve_options& o, const samples& shown, Call call) {
    const auto& target = shown.target;
    const auto shape = check_truths(shown, o.width());
    if (!shown.preds.is_floating()) refuse_curve(shown);
    const weights counts(shown);
    const labels truth(target);
    const bool logits = are_logits(scores,
                                   {.labels = o.labels,
                                    .logits = o.logits,
                                    .ignore_index = o.ignore_index,
                                    .counted_tell_logits = o.labels == 0},
                                   shown, counts);
    for (std::size_t n = 0; n < shape.outer; ++n)
        for (std::size_t k = 0; k < shape.inner; ++k)
            for (std::size_t label = 0; label < o.width(); ++label) {
                const auto i = (n * o.width() + label) * shape.inner + k;
                const double w = truth[i] == o.ignore_index ? 0 : counts[i];
                if (w == 0) {
                    call(label, false, T(0), 0.0);
                    continue;
                }
                if (truth[i] != 0 && truth[i] != 1)
                    refuse_label("target", target, i, 2, o.ignore_index);
                if (scores[i] != scores[i]) refuse_nan("preds", shown.preds, i);
                call(label, truth[i] == 1, logits ? sigmoid(scores[i]) : scores[i], w);
            }
}

/// Calls it with preds as what they are.
template <class Call>
void with_scores(const samples& shown, Call call) {
    if (!shown.preds.is_floating()) refuse_curve(shown);
    if (shown.preds.type() == element::float32)
        call(shown.preds.float32());
    else
        call(shown.preds.float64());
}

SKEIN_INLINE void add_binned(summed& counts, const curve_options& o, const samples& shown) {
    const auto bins = o.thresholds + 1;
    double* const cells = counts.values().data();
    with_scores(shown, [&]<class T>(const T* scores) {
        const threshold_table<T> thresholds(o.thresholds);
        if (o.classes == 0) {
            each_truth_score(scores, o, shown, [&](std::size_t label, bool is, T one, double w) {
                if (w != 0) cells[(2 * label + is) * bins + thresholds.below(one)] += w;
            });
            return;
        }
        std::size_t right = 0;
        double weight = 0;
        each_class_score(
            scores, o, shown,
            [&](std::size_t label, double w) {
                right = label;
                weight = w;
            },
            [&](std::size_t c, T one) {
                cells[(2 * c + (c == right)) * bins + thresholds.below(one)] += weight;
            });
    });
}

SKEIN_INLINE void add_exact(gathered& into, const curve_options& o, const samples& shown) {
    std::vector<float> row(into.width());
    with_scores(shown, [&](const auto* scores) {
        if (o.classes == 0) {
            each_truth_score(scores, o, shown, [&](std::size_t label, bool is, auto one, double w) {
                row[2 * label] = static_cast<float>(one);
                row[2 * label + 1] = static_cast<float>(is ? w : -w);
                if (label + 1 < o.width() || (w == 0 && o.width() == 1)) return;
                into.push(std::span<const float>(row));
            });
            return;
        }
        each_class_score(
            scores, o, shown,
            [&](std::size_t label, double w) {
                row[0] = static_cast<float>(label);
                row[1] = static_cast<float>(w);
            },
            [&](std::size_t c, auto one) {
                row[c + 2] = static_cast<float>(one);
                if (c + 1 == o.classes) into.push(std::span<const float>(row));
            });
    });
}

/// Points of a curve: what is right and wrong at or above thresholds, from the highest down.
struct curve {
    std::vector<double> right, wrong;
    /// All there is, at any threshold.
    double all_right = 0, all_wrong = 0;
};

[[nodiscard]] SKEIN_INLINE double area_of(const curve& c) {
    double area = 0, x = 0, y = 0;
    for (std::size_t i = 0; i < c.right.size(); ++i) {
        const double to_x = ratio(c.wrong[i], c.all_wrong), to_y = ratio(c.right[i], c.all_right);
        if (i > 0) area += (to_x - x) * (to_y + y) / 2;
        x = to_x;
        y = to_y;
    }
    return area;
}

/// never_right: the recall of a class without any right score.
[[nodiscard]] SKEIN_INLINE double precision_of(const curve& c, double never_right) {
    double sum = 0, before = 0;
    for (std::size_t i = 0; i < c.right.size(); ++i) {
        const double recall = c.all_right == 0 ? never_right : ratio(c.right[i], c.all_right);
        sum += (recall - before) * ratio(c.right[i], c.right[i] + c.wrong[i]);
        before = recall;
    }
    return sum;
}

/// From counts of one class or label.
[[nodiscard]] SKEIN_INLINE curve curve_of_bins(std::span<const double> wrong,
                                               std::span<const double> right) {
    curve out;
    for (std::size_t i = right.size(); i-- > 1;) {
        out.all_right += right[i];
        out.all_wrong += wrong[i];
        out.right.push_back(out.all_right);
        out.wrong.push_back(out.all_wrong);
    }
    out.all_right += right[0];
    out.all_wrong += wrong[0];
    return out;
}

struct scored {
    float score = 0;
    double right = 0, wrong = 0;
};

/// From scores of one class or label, which it sorts. A first point of nothing.
[[nodiscard]] SKEIN_INLINE curve curve_of_scores(std::vector<scored>& all) {
    // NaN, which only a broken checkpoint can hold, comes last: an order all the same.
    std::ranges::sort(all, [](const scored& a, const scored& b) {
        return a.score > b.score || (b.score != b.score && a.score == a.score);
    });
    curve out{.right = {0}, .wrong = {0}};
    for (std::size_t i = 0; i < all.size(); ++i) {
        out.all_right += all[i].right;
        out.all_wrong += all[i].wrong;
        if (i + 1 < all.size() && all[i + 1].score == all[i].score) continue;
        out.right.push_back(out.all_right);
        out.wrong.push_back(out.all_wrong);
    }
    return out;
}

[[nodiscard]] SKEIN_INLINE std::vector<curve> curves_of(const summed& counts,
                                                        const curve_options& o) {
    const auto bins = o.thresholds + 1;
    const auto cells = counts.values();
    std::vector<curve> out;
    if (o.average == average::micro) {
        std::vector<double> sums(2 * bins);
        for (std::size_t i = 0; i < cells.size(); ++i) sums[i % (2 * bins)] += cells[i];
        const std::span<const double> all(sums);
        out.push_back(curve_of_bins(all.first(bins), all.last(bins)));
        return out;
    }
    for (std::size_t c = 0; c < o.width(); ++c)
        out.push_back(curve_of_bins(cells.subspan(2 * c * bins, bins),
                                    cells.subspan((2 * c + 1) * bins, bins)));
    return out;
}

[[nodiscard]] SKEIN_INLINE std::vector<curve> curves_of(const gathered& rows,
                                                        const curve_options& o) {
    const auto column = [&](std::size_t c, std::vector<scored>& into) {
        for (std::size_t row = 0; row < rows.rows(); ++row) {
            if (o.classes > 0) {
                const bool is = rows.at(row, 0) == static_cast<float>(c);
                const double w = rows.at(row, 1);
                into.push_back({rows.at(row, c + 2), is ? w : 0, is ? 0 : w});
            } else if (const double w = rows.at(row, 2 * c + 1); w != 0) {
                into.push_back({rows.at(row, 2 * c), std::max(w, 0.0), std::max(-w, 0.0)});
            }
        }
    };
    std::vector<curve> out;
    std::vector<scored> all;
    for (std::size_t c = 0; c < o.width(); ++c) {
        column(c, all);
        if (o.average == average::micro && c + 1 < o.width()) continue;
        out.push_back(curve_of_scores(all));
        all.clear();
    }
    return out;
}

[[nodiscard]] SKEIN_INLINE score averaged(const std::vector<curve>& curves,
                                          std::vector<double> values, const curve_options& o) {
    if (values.size() == 1 && o.width() == 1) return values[0];
    if (o.average == average::micro) return values[0];
    if (o.average == average::none) return score(std::move(values));
    std::vector<double> weights;
    for (std::size_t c = 0; c < values.size(); ++c) {
        const bool is_number = values[c] == values[c];
        weights.push_back(!is_number ? 0 : o.average == average::macro ? 1 : curves[c].all_right);
    }
    return mean_of(values, weights,
                   o.average == average::macro ? std::numeric_limits<double>::quiet_NaN() : 0);
}

SKEIN_INLINE score binned_auroc(const summed& counts, const curve_options& o) {
    const auto curves = curves_of(counts, o);
    std::vector<double> values;
    for (const auto& each : curves) values.push_back(area_of(each));
    return averaged(curves, std::move(values), o);
}

SKEIN_INLINE score binned_precision(const summed& counts, const curve_options& o) {
    const auto curves = curves_of(counts, o);
    std::vector<double> values;
    for (const auto& each : curves) values.push_back(precision_of(each, 0));
    return averaged(curves, std::move(values), o);
}

SKEIN_INLINE score sorted_auroc(const gathered& scores, const curve_options& o) {
    const auto curves = curves_of(scores, o);
    std::vector<double> values;
    for (const auto& each : curves) values.push_back(area_of(each));
    return averaged(curves, std::move(values), o);
}

SKEIN_INLINE score sorted_precision(const gathered& scores, const curve_options& o) {
    const auto curves = curves_of(scores, o);
    // torchmetrics asks whether all targets are 0, of classes too, where that is one of them.
    bool all_first = o.classes == 0;
    if (o.classes > 0 && !curves.empty()) all_first = curves[0].all_wrong == 0;
    std::vector<double> values;
    for (const auto& each : curves)
        values.push_back(
            precision_of(each, all_first ? 0 : std::numeric_limits<double>::quiet_NaN()));
    return averaged(curves, std::move(values), o);
}

} // namespace skein::metrics::detail
