// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/metrics/regression.hpp>.

#include <skein/core/error.hpp>
#include <skein/metrics/detail/shapes.hpp>

#include <cmath>
#include <limits>

#include <fmt/core.h>

namespace skein::metrics {

namespace detail {

/// Sums of several terms of (preds, target): in lanes where all are float32 and count 1.
template <class Term>
void add_terms(summed& error, summed& weight, const samples& shown, Term term) {
    check_same_shape(shown);
    const weights counts(shown);
    const auto n = shown.target.size();
    const float *p = shown.preds.float32(), *t = shown.target.float32();
    if (p != nullptr && t != nullptr && !counts.given()) {
        constexpr std::size_t lanes = 8;
        double sums[lanes] = {};
        std::size_t i = 0;
        for (; i + lanes <= n; i += lanes)
            for (std::size_t k = 0; k < lanes; ++k)
                sums[k] += term(static_cast<double>(p[i + k]) - static_cast<double>(t[i + k]));
        for (; i < n; ++i) sums[0] += term(static_cast<double>(p[i]) - static_cast<double>(t[i]));
        for (const double sum : sums) error[0] += sum;
        weight[0] += static_cast<double>(n);
        return;
    }
    for (std::size_t i = 0; i < n; ++i) {
        const double w = counts[i];
        if (w == 0) continue;
        error[0] += w * term(shown.preds[i] - shown.target[i]);
        weight[0] += w;
    }
}

SKEIN_INLINE void add_absolute(summed& error, summed& weight, const samples& shown) {
    add_terms(error, weight, shown, [](double off) { return std::abs(off); });
}

SKEIN_INLINE void add_squared(summed& error, summed& weight, const samples& shown) {
    add_terms(error, weight, shown, [](double off) { return off * off; });
}

} // namespace detail

SKEIN_INLINE void r2::update(const samples& shown) {
    detail::check_same_shape(shown);
    if (const auto& target = shown.target;
        target.dimensions() == 0 || target.size() != target.extent(0))
        throw skein::error(errc::not_supported,
                           fmt::format("not supported: r2 of several outputs, {}", target.text()))
            .with_hint("show one output, [N]: r2 of several is one metric for each");
    const detail::weights counts(shown);
    for (std::size_t i = 0; i < shown.target.size(); ++i) {
        const double w = counts[i];
        if (w == 0) continue;
        const double is = shown.target[i], off = is - shown.preds[i];
        squares[0] += w * is * is;
        sum[0] += w * is;
        residual[0] += w * off * off;
        weight[0] += w;
    }
}

SKEIN_INLINE double r2::compute() const {
    const double n = weight[0];
    if (n < 2) return std::numeric_limits<double>::quiet_NaN();
    const double rss = residual[0], tss = squares[0] - sum[0] * (sum[0] / n);
    constexpr double close = 1e-4;
    const double plain = std::abs(rss) <= close ? 1 : std::abs(tss) <= close ? 0 : 1 - rss / tss;
    const auto variables = static_cast<double>(adjusted);
    return variables == 0 || variables >= n - 1 ? plain
                                                : 1 - (1 - plain) * (n - 1) / (n - variables - 1);
}

} // namespace skein::metrics
