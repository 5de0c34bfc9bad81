// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the learning rate is multiplied by in a step of a larger batch than the first.
//
//     rate_factor(rate_rule::adascale, {.scale = 4.0, .gain = noise.gain(4.0)});

#include <cstdint>
#include <string_view>

namespace skein::goodput {

/// s is the batch in units of the first one, r the gain (goodput/gradient_noise.hpp).
enum class rate_rule : std::uint8_t {
    same,      ///< 1
    adascale,  ///< r: for SGD. Johnson et al. 2020 (ICML)
    adamscale, ///< the square root of r: for Adam and its kin. Qiao et al. 2021 (OSDI)
    linear,    ///< s: for SGD. Goyal et al. 2017 (arXiv 1706.02677)
    sqrt,      ///< the square root of s: for Adam. Krizhevsky 2014 (arXiv 1404.5997)
    legw, ///< the same, reached over s times as long a warm-up. You et al. 2019 (arXiv 1901.08256)
};

/// "adascale"
[[nodiscard]] std::string_view name_of(rate_rule rule) noexcept;

/// Of one step.
struct rate_inputs {
    double scale = 1.0;    ///< s
    double gain = 1.0;     ///< r
    double progress = 0.0; ///< steps of the first batch that training has come to
    double warm_up = 0.0;  ///< of legw: steps of the first batch; 0: none
};

/// 1 for the first batch, whatever the rule (but in the warm-up of legw).
///   errors  invalid_argument: a scale or gain that is not positive, a number that is not finite
[[nodiscard]] double rate_factor(rate_rule rule, const rate_inputs& now);

} // namespace skein::goodput

#if SKEIN_HEADER_ONLY
#include <skein/goodput/detail/rate_rule.ipp>
#endif
