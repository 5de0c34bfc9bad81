// SPDX-License-Identifier: Apache-2.0
#pragma once
// How far predictions are from what they should be: MAE, MSE, RMSE and R2, as torchmetrics 1.9
// answers (source: its functional/regression).
//
// Preds and target have one shape, of any type; all elements count alike, or by their weight. NaN
// is not refused: the result is NaN.

#include <skein/core/option_count.hpp>
#include <skein/metrics/metric.hpp>
#include <skein/metrics/samples.hpp>

#include <cmath>
#include <cstddef>
#include <string_view>

namespace skein::metrics {

namespace detail {
/// Adds up what elements count, and their absolute or squared differences.
void add_absolute(summed& error, summed& weight, const samples& shown);
void add_squared(summed& error, summed& weight, const samples& shown);
} // namespace detail

/// The mean absolute error: sum |preds - target| / n. Without samples NaN.
struct mae {
    static constexpr std::string_view name = "mae";
    summed error{}, weight{};

    void update(const samples& shown) { detail::add_absolute(error, weight, shown); }
    [[nodiscard]] double compute() const { return error[0] / weight[0]; }
};

/// The mean squared error: sum (preds - target)^2 / n. Without samples NaN.
struct mse {
    static constexpr std::string_view name = "mse";
    summed error{}, weight{};

    void update(const samples& shown) { detail::add_squared(error, weight, shown); }
    [[nodiscard]] double compute() const { return error[0] / weight[0]; }
};

/// The root of the mean squared error, which is taken of all samples, not of the batches' roots.
struct rmse {
    static constexpr std::string_view name = "rmse";
    summed error{}, weight{};

    void update(const samples& shown) { detail::add_squared(error, weight, shown); }
    [[nodiscard]] double compute() const { return std::sqrt(error[0] / weight[0]); }
};

/// How much of target's spread is explained: 1 - rss / tss, with rss the sum of (target - preds)^2
/// and tss that of (target - mean of target)^2. Preds and target are [N] or [N, 1].
///   result  1 for rss up to 1e-4, else 0 for tss up to 1e-4, however small target is (torchmetrics);
///           NaN for fewer than two samples, where torchmetrics throws
struct r2 {
    static constexpr std::string_view name = "r2";
    option_count adjusted = 0; ///< independent variables: 1 - (1 - r2) (n - 1) / (n - adjusted - 1)
    summed squares{}, sum{}, residual{}, weight{};

    void update(const samples& shown);
    [[nodiscard]] double compute() const;
};

} // namespace skein::metrics

#if SKEIN_HEADER_ONLY
#include <skein/metrics/detail/regression.ipp>
#endif
