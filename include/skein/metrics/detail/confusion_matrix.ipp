// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/metrics/confusion_matrix.hpp>.

#include <skein/metrics/detail/decisions.hpp>

#include <span>
#include <utility>
#include <vector>

namespace skein::metrics {

namespace detail {

/// Divides the cells of one square matrix.
SKEIN_INLINE void normalize_cells(std::span<double> cells, std::size_t side, normalize how) {
    std::vector<double> rows(side), columns(side);
    double all = 0;
    for (std::size_t r = 0; r < side; ++r)
        for (std::size_t c = 0; c < side; ++c) {
            rows[r] += cells[r * side + c];
            columns[c] += cells[r * side + c];
            all += cells[r * side + c];
        }
    for (std::size_t r = 0; r < side; ++r)
        for (std::size_t c = 0; c < side; ++c) {
            auto& cell = cells[r * side + c];
            if (how == normalize::rows) cell = ratio(cell, rows[r]);
            if (how == normalize::columns) cell = ratio(cell, columns[c]);
            if (how == normalize::all) cell = ratio(cell, all);
        }
}

} // namespace detail

SKEIN_INLINE void confusion_matrix::begin() {
    check_stat_options(stat_options_of(*this));
    counts.resize(classes > 0 ? classes * classes : 4 * stat_options_of(*this).width());
}

SKEIN_INLINE void confusion_matrix::update(const samples& shown) {
    auto options = stat_options_of(*this);
    options.counted_tell_logits = options.width() == 1;
    double* const cells = counts.values().data();
    if (classes > 0)
        detail::each_class_decision(
            options, shown, [cells, side = classes](std::size_t is, std::size_t said, double w) {
                cells[is * side + said] += w;
            });
    else
        detail::each_truth_decision(options, shown,
                                    [&](std::size_t label, std::size_t is, std::size_t said,
                                        double w) { cells[4 * label + 2 * is + said] += w; });
}

SKEIN_INLINE score confusion_matrix::compute() const {
    const auto side = classes > 0 ? classes.value() : std::size_t{2};
    std::vector<double> cells(counts.values().begin(), counts.values().end());
    for (std::size_t from = 0; from < cells.size(); from += side * side)
        detail::normalize_cells(std::span(cells).subspan(from, side * side), side, normalize);
    score out(side, side, std::move(cells));
    if (labels > 0) out.shape = {labels, 2, 2};
    return out;
}

} // namespace skein::metrics
