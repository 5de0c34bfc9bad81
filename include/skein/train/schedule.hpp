// SPDX-License-Identifier: Apache-2.0
#pragma once
// Learning-rate schedules: pure functions of the step, so that resuming needs no state.
//
//     schedule lr = warmup_cosine{.peak = 6e-4, .floor = 6e-5, .warmup = 100, .total = 2000};
//     optimizer.step(learning_rate(lr, step));
//
// Steps count from 0. Every schedule warms up linearly: lr = peak * (step + 1) / warmup, so that the
// last warm-up step runs at the peak.      source: Goyal et al. 2017 (arXiv 1706.02677) section 2.2

#include <skein/core/result.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <string_view>
#include <variant>

namespace skein::train {

namespace detail {

/// Position in (0, 1] of the decay after the warm-up: 0 at its first step, 1 from step `total` on.
[[nodiscard]] inline double decay_position(std::uint64_t step, std::uint64_t warmup,
                                           std::uint64_t total) noexcept {
    if (step >= total) return 1.0;
    if (total <= warmup || step <= warmup) return 0.0;
    return static_cast<double>(step - warmup) / static_cast<double>(total - warmup);
}

/// peak * (step + 1) / warmup, or 1 behind the warm-up.
[[nodiscard]] inline double warmup_factor(std::uint64_t step, std::uint64_t warmup) noexcept {
    return step < warmup ? static_cast<double>(step + 1) / static_cast<double>(warmup) : 1.0;
}

} // namespace detail

/// The peak for ever, after a warm-up.
struct constant_rate {
    double peak = 1e-3;
    std::uint64_t warmup = 0; ///< steps

    [[nodiscard]] double operator()(std::uint64_t step) const noexcept {
        return peak * detail::warmup_factor(step, warmup);
    }
};

/// A half cosine from the peak to the floor, reached at step `total` and kept.
///   lr = floor + (peak - floor) * (1 + cos(pi * t)) / 2, t = (step - warmup) / (total - warmup)
///   source: Loshchilov and Hutter 2017 (arXiv 1608.03983) equation 5
struct warmup_cosine {
    double peak = 1e-3;
    double floor = 0.0;
    std::uint64_t warmup = 0; ///< steps
    std::uint64_t total = 1;  ///< steps, warm-up included

    [[nodiscard]] double operator()(std::uint64_t step) const noexcept {
        if (step < warmup) return peak * detail::warmup_factor(step, warmup);
        const double t = detail::decay_position(step, warmup, total);
        return floor + (peak - floor) * 0.5 * (1.0 + std::cos(std::numbers::pi * t));
    }
};

/// A straight line from the peak to the floor, reached at step `total` and kept.
///   lr = peak + (floor - peak) * t, t as in warmup_cosine      source: Devlin et al. 2018, A.2
struct warmup_linear {
    double peak = 1e-3;
    double floor = 0.0;
    std::uint64_t warmup = 0; ///< steps
    std::uint64_t total = 1;  ///< steps, warm-up included

    [[nodiscard]] double operator()(std::uint64_t step) const noexcept {
        if (step < warmup) return peak * detail::warmup_factor(step, warmup);
        return peak + (floor - peak) * detail::decay_position(step, warmup, total);
    }
};

/// Multiplied by gamma every `every` steps.
///   lr = peak * gamma ^ floor((step - warmup) / every)     source: torch.optim.lr_scheduler.StepLR
struct step_decay {
    double peak = 1e-3;
    double gamma = 0.1;
    std::uint64_t every = 1000; ///< steps
    std::uint64_t warmup = 0;   ///< steps

    [[nodiscard]] double operator()(std::uint64_t step) const noexcept {
        if (step < warmup) return peak * detail::warmup_factor(step, warmup);
        const auto drops = (step - warmup) / std::max<std::uint64_t>(every, 1);
        return peak * std::pow(gamma, static_cast<double>(drops));
    }
};

/// Any of the schedules, as a value.
using schedule = std::variant<constant_rate, warmup_cosine, warmup_linear, step_decay>;

/// The rate of this step (from 0).
[[nodiscard]] double learning_rate(const schedule& s, std::uint64_t step) noexcept;

/// What a command line gives for a schedule.
struct schedule_settings {
    double peak = 1e-3;
    double floor = 0.0;
    std::uint64_t warmup = 0;
    std::uint64_t total = 1;
    double gamma = 0.1;      ///< only "step"
    std::uint64_t every = 0; ///< only "step"; 0 means a third of the steps after the warm-up
};

/// The schedule called "constant", "cosine", "linear" or "step"; errc::usage for another name or
/// for numbers that make no sense.
[[nodiscard]] result<schedule> make_schedule(std::string_view name, schedule_settings s);

} // namespace skein::train

#if SKEIN_HEADER_ONLY
#include <skein/train/detail/schedule.ipp>
#endif
