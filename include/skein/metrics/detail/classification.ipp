// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/metrics/classification.hpp>.

#include <limits>
#include <vector>

#include <fmt/core.h>

namespace skein::metrics {

SKEIN_INLINE void fbeta::begin() {
    if (!(beta > 0 && beta <= 1e150))
        throw error(errc::usage, fmt::format(".beta = {}", beta))
            .with_hint("give a number above 0");
    begin_stat_scores(counts, stat_options_of(*this));
}

// torchmetrics leaves the class ignore_index out of macro averages, and what was predicted of it
// out of the denominator of micro averages; of multilabel too, where it is no class.
SKEIN_INLINE score jaccard::compute() const {
    const auto options = stat_options_of(*this);
    const auto each = stats_of(counts, options);
    const auto denominator = [](const stat& s) { return s.tp + s.fp + s.fn; };
    if (options.width() == 1) return ratio(each[0].tp, denominator(each[0]), zero_division);
    const bool leaves_out = ignore_index.has_value() && *ignore_index >= 0 &&
                            static_cast<std::size_t>(*ignore_index) < each.size();
    const auto left_out = leaves_out ? static_cast<std::size_t>(*ignore_index) : each.size();
    if (average == average::micro) {
        const auto all = sum_of(each);
        return ratio(all.tp, denominator(all) - (leaves_out ? denominator(each[left_out]) : 0),
                     zero_division);
    }
    std::vector<double> values, weights;
    for (std::size_t c = 0; c < each.size(); ++c) {
        const auto& one = each[c];
        values.push_back(ratio(one.tp, denominator(one), zero_division));
        if (average == average::weighted)
            weights.push_back(one.tp + one.fn);
        else
            weights.push_back(c == left_out || (classes > 0 && denominator(one) == 0) ? 0 : 1);
    }
    if (average == average::none) return score(std::move(values));
    return mean_of(values, weights, std::numeric_limits<double>::quiet_NaN());
}

} // namespace skein::metrics
