// SPDX-License-Identifier: Apache-2.0
#pragma once
// How the scores of classes or labels become one.

#include <skein/core/config.hpp>

#include <cstdint>
#include <limits>
#include <span>
#include <string_view>

namespace skein::metrics {

/// The averages of torchmetrics.
enum class average : std::uint8_t {
    micro,    ///< of all decisions together
    macro,    ///< the mean of the classes' scores
    weighted, ///< their mean, each class as often as it is a target
    none,     ///< one score per class
};

[[nodiscard]] constexpr std::string_view to_string(average how) noexcept {
    switch (how) {
    case average::micro: return "micro";
    case average::macro: return "macro";
    case average::weighted: return "weighted";
    case average::none: return "none";
    }
    return "unknown";
}

/// The weighted mean; when_empty if all weights are 0.
[[nodiscard]] inline double mean_of(std::span<const double> values, std::span<const double> weights,
                                    double when_empty) noexcept {
    double sum = 0, whole = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
        if (weights[i] == 0) continue;
        sum += weights[i] * values[i];
        whole += weights[i];
    }
    return whole == 0 ? when_empty : sum / whole;
}

} // namespace skein::metrics
