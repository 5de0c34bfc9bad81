// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/metrics/stat_scores.hpp>.
//
// The array of multiclass: tp of each class, fp of each, fn of each, and how much was counted. Of
// multilabel and binary: tn, fp, fn, tp of each label.

#include <skein/metrics/detail/decisions.hpp>

#include <fmt/core.h>

namespace skein::metrics {

SKEIN_INLINE void check_stat_options(const stat_options& o) {
    const auto refuse = [](std::string what, const char* hint) {
        throw error(errc::usage, std::move(what)).with_hint(hint);
    };
    if (o.classes > 0 && o.labels > 0)
        refuse(fmt::format(".classes = {} and .labels = {}", o.classes.value(), o.labels.value()),
               "a sample is of one class, or has several labels: give one of both");
    if (o.classes == 1 || o.labels == 1)
        refuse(o.classes == 1 ? ".classes = 1" : ".labels = 1",
               "give at least 2, or neither for binary predictions");
    if (o.top_k == 0 || (o.top_k > 1 && o.top_k > o.classes))
        refuse(fmt::format(".top_k = {} of {} classes", o.top_k.value(), o.classes.value()),
               "give 1 to the number of classes");
    if (!(o.threshold >= 0 && o.threshold <= 1))
        refuse(fmt::format(".threshold = {}", o.threshold), "give a probability, 0 to 1");
    if (o.zero_division != 0 && o.zero_division != 1)
        refuse(fmt::format(".zero_division = {}", o.zero_division), "give 0 or 1");
}

SKEIN_INLINE void begin_stat_scores(summed& counts, const stat_options& options) {
    check_stat_options(options);
    counts.resize(options.classes > 0 ? 3 * options.classes + 1 : 4 * options.width());
}

SKEIN_INLINE void add_stat_scores(summed& counts, const stat_options& options,
                                  const samples& shown) {
    double* const cells = counts.values().data();
    if (options.classes == 0) {
        detail::each_truth_decision(options, shown,
                                    [&](std::size_t label, std::size_t is, std::size_t said,
                                        double w) { cells[4 * label + 2 * is + said] += w; });
        return;
    }
    const auto classes = options.classes.value();
    double all = 0;
    detail::each_class_decision(options, shown, [&](std::size_t is, std::size_t said, double w) {
        all += w;
        if (is == said) {
            cells[is] += w;
        } else {
            cells[classes + said] += w;
            cells[2 * classes + is] += w;
        }
    });
    cells[3 * classes] += all;
}

SKEIN_INLINE std::vector<stat> stats_of(const summed& counts, const stat_options& options) {
    std::vector<stat> out(options.width());
    const auto classes = options.classes.value();
    for (std::size_t c = 0; c < out.size(); ++c) {
        auto& one = out[c];
        if (classes == 0) {
            one = {.tp = counts[4 * c + 3],
                   .fp = counts[4 * c + 1],
                   .tn = counts[4 * c],
                   .fn = counts[4 * c + 2]};
        } else {
            one = {.tp = counts[c], .fp = counts[classes + c], .fn = counts[2 * classes + c]};
            one.tn = counts[3 * classes] - (one.tp + one.fp + one.fn);
        }
    }
    return out;
}

SKEIN_INLINE stat sum_of(const std::vector<stat>& each) noexcept {
    stat all;
    for (const auto& one : each) {
        all.tp += one.tp;
        all.fp += one.fp;
        all.tn += one.tn;
        all.fn += one.fn;
    }
    return all;
}

namespace detail {

SKEIN_INLINE void refuse_top_k(const samples& shown, std::size_t top_k) {
    throw error(errc::invalid_argument,
                fmt::format(".top_k = {} needs scores, preds are {}", top_k, shown.preds.text()))
        .with_hint("show the metric the scores of all classes");
}

SKEIN_INLINE void refuse_probabilities() {
    throw error(errc::invalid_argument,
                "preds have scores outside of [0, 1] (or nan) and are said to be probabilities")
        .with_hint("leave .logits = false out, or give .logits = true");
}

SKEIN_INLINE score average_of(const std::vector<stat>& each, std::vector<double> values,
                              const stat_options& options, average how, absent left_out) {
    if (how == average::none) return score(std::move(values));
    std::vector<double> weights;
    for (const auto& one : each) {
        const double targets = one.tp + one.fn;
        if (how == average::weighted)
            weights.push_back(targets);
        else if (options.classes == 0)
            weights.push_back(1);
        else
            weights.push_back((left_out == absent::unseen ? targets + one.fp : targets) == 0 ? 0
                                                                                             : 1);
    }
    return mean_of(values, weights, 0);
}

} // namespace detail

} // namespace skein::metrics
