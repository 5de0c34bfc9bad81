// SPDX-License-Identifier: Apache-2.0
#pragma once
// Learning-rate schedules: pure functions of the step, so that resuming needs no state.
//
//     schedule lr = warmup_cosine{.peak = 6e-4, .floor = 6e-5, .warmup = 100, .total = 2000};
//     optimizer.step(learning_rate(lr, step));
//
// Steps count from 0. Every schedule warms up linearly: lr = peak * (step + 1) / warmup, so that the
// last warm-up step runs at the peak.      source: Goyal et al. 2017 (arXiv 1706.02677) section 2.2

#include <skein/core/error.hpp>
#include <skein/core/result.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <string>
#include <string_view>
#include <variant>

#include <fmt/core.h>

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
[[nodiscard]] inline double learning_rate(const schedule& s, std::uint64_t step) noexcept {
    if (auto* p = std::get_if<constant_rate>(&s)) return (*p)(step);
    if (auto* p = std::get_if<warmup_cosine>(&s)) return (*p)(step);
    if (auto* p = std::get_if<warmup_linear>(&s)) return (*p)(step);
    if (auto* p = std::get_if<step_decay>(&s)) return (*p)(step);
    return 0.0;
}

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
[[nodiscard]] inline result<schedule> make_schedule(std::string_view name, schedule_settings s) {
    if (!(s.peak > 0.0) || !std::isfinite(s.peak))
        return error(errc::usage, fmt::format("learning rate {} is not a positive number", s.peak));
    if (!(s.floor >= 0.0) || s.floor > s.peak)
        return error(errc::usage, fmt::format("lowest learning rate {} is not between 0 and the "
                                              "learning rate {}",
                                              s.floor, s.peak));
    if (name == "constant") return schedule(constant_rate{s.peak, s.warmup});
    if (name == "cosine") return schedule(warmup_cosine{s.peak, s.floor, s.warmup, s.total});
    if (name == "linear") return schedule(warmup_linear{s.peak, s.floor, s.warmup, s.total});
    if (name == "step") {
        const auto rest = s.total > s.warmup ? s.total - s.warmup : 1;
        const auto every = s.every != 0 ? s.every : std::max<std::uint64_t>(rest / 3, 1);
        return schedule(step_decay{s.peak, s.gamma, every, s.warmup});
    }
    return error(errc::usage, fmt::format("unknown schedule '{}'", name))
        .with_hint("one of constant, cosine, linear, step");
}

} // namespace skein::train
