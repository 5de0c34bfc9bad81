// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/goodput/rate_rule.hpp>.

#include <skein/core/error.hpp>

#include <algorithm>
#include <cmath>

#include <fmt/core.h>

namespace skein::goodput {

SKEIN_INLINE std::string_view name_of(rate_rule rule) noexcept {
    switch (rule) {
    case rate_rule::same: break;
    case rate_rule::adascale: return "adascale";
    case rate_rule::adamscale: return "adamscale";
    case rate_rule::linear: return "linear";
    case rate_rule::sqrt: return "sqrt";
    case rate_rule::legw: return "legw";
    }
    return "same";
}

SKEIN_INLINE double rate_factor(rate_rule rule, const rate_inputs& now) {
    const auto is_positive = [](double x) { return x > 0 && std::isfinite(x); };
    if (!is_positive(now.scale) || !is_positive(now.gain) || !(now.progress >= 0) ||
        !(now.warm_up >= 0) || !std::isfinite(now.progress) || !std::isfinite(now.warm_up))
        throw error(errc::invalid_argument,
                    fmt::format("the rate rule {} of a scale of {}, a gain of {}, a progress of {} "
                                "and a warm-up of {}",
                                name_of(rule), now.scale, now.gain, now.progress, now.warm_up));
    switch (rule) {
    case rate_rule::same: break;
    case rate_rule::adascale: return now.gain;
    case rate_rule::adamscale: return std::sqrt(now.gain);
    case rate_rule::linear: return now.scale;
    case rate_rule::sqrt: return std::sqrt(now.scale);
    case rate_rule::legw: {
        const double steps = now.scale * now.warm_up;
        const double warmed = steps > 0 ? std::min(1.0, now.progress / steps) : 1.0;
        return std::sqrt(now.scale) * warmed;
    }
    }
    return 1.0;
}

} // namespace skein::goodput
