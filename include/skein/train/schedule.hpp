// SPDX-License-Identifier: Apache-2.0
#pragma once
// Learning-rate schedules: pure functions of the step, so that resuming needs no state.
//
//     schedule lr = warmup_cosine{.peak = 6e-4, .floor = 6e-5, .warmup = 100, .total = 2000};
//     schedule mine = [](std::uint64_t step) { return 1e-3 / std::sqrt(1.0 + double(step)); };
//     optimizer.step(learning_rate(lr, step));
//
// Steps count from 0. Every schedule warms up linearly: lr = peak * (step + 1) / warmup, so that
// the last warm-up step runs at the peak. source: Goyal et al. 2017 (arXiv 1706.02677) section 2.2

#include <skein/core/result.hpp>
#include <skein/train/description.hpp>

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <functional>
#include <numbers>
#include <string_view>
#include <type_traits>
#include <utility>

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
    void describe(description& to) const {
        to.name = "constant_rate";
        to.add("learning rate", peak).add("warm-up", warmup);
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
    void describe(description& to) const {
        to.name = "warmup_cosine";
        to.add("learning rate", peak).add("warm-up", warmup);
        to.add("lowest learning rate", floor).add("steps of the schedule", total);
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
    void describe(description& to) const {
        to.name = "warmup_linear";
        to.add("learning rate", peak).add("warm-up", warmup);
        to.add("lowest learning rate", floor).add("steps of the schedule", total);
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
    void describe(description& to) const {
        to.name = "step_decay";
        to.add("learning rate", peak).add("warm-up", warmup);
        to.add("gamma", gamma).add("steps between drops", every);
    }
};

/// How warmup_stable_decay comes down.
enum class decay_form : std::uint8_t { linear, one_minus_sqrt };

/// The peak until `decay` steps before the end, then down to the floor, reached at step `total` and
/// kept.
///   lr = floor + (peak - floor) * (1 - t) or * (1 - sqrt(t)),
///   t = (step - begin) / (total - begin),
///   begin = total - decay, but not before the end of the warm-up
///   source: Hu et al. 2024 (arXiv 2404.06395) section 4; Haegele et al. 2024 (arXiv 2405.18392)
///   section 3
struct warmup_stable_decay {
    double peak = 1e-3;
    double floor = 0.0;
    std::uint64_t warmup = 0; ///< steps
    std::uint64_t decay = 0;  ///< steps, the last of `total`
    std::uint64_t total = 1;  ///< steps, all three phases
    decay_form form = decay_form::linear;

    [[nodiscard]] double operator()(std::uint64_t step) const noexcept {
        if (step < warmup) return peak * detail::warmup_factor(step, warmup);
        const auto begin = std::max(warmup, total > decay ? total - decay : 0);
        const double t = detail::decay_position(step, begin, total);
        return peak + (floor - peak) * (form == decay_form::linear ? t : std::sqrt(t));
    }
    void describe(description& to) const {
        to.name = "warmup_stable_decay";
        to.add("learning rate", peak).add("warm-up", warmup);
        to.add("lowest learning rate", floor).add("steps of the schedule", total);
        to.add("steps of the decay", decay);
        to.add("form of the decay", form == decay_form::linear ? "linear" : "1-sqrt");
    }
};

/// The rate of a step, from 0. Law: it depends on the step alone, and is equal on all ranks.
/// A schedule with settings may say them, as the ones above do: void describe(description&) const.
template <class S>
concept learning_rate_schedule =
    std::copy_constructible<S> && requires(const S& s, std::uint64_t step) {
        { s(step) } -> std::convertible_to<double>;
    };

/// Any schedule, as a value.
class schedule {
public:
    template <class S>
        requires(!std::same_as<std::remove_cvref_t<S>, schedule>) &&
                learning_rate_schedule<std::remove_cvref_t<S>>
    schedule(S&& how) {
        if constexpr (requires(description& to) { how.describe(to); }) how.describe(said_);
        rate_ = std::forward<S>(how);
    }

    [[nodiscard]] double operator()(std::uint64_t step) const { return rate_(step); }
    /// Its name and settings; of one that does not say them, its rates at some of so many steps.
    [[nodiscard]] description describe(std::uint64_t steps) const;

private:
    std::function<double(std::uint64_t)> rate_;
    description said_;
};

/// The rate of this step (from 0); errc::usage when the schedule gives no number or a negative one.
[[nodiscard]] double learning_rate(const schedule& s, std::uint64_t step);

/// What a command line gives for a schedule.
struct schedule_settings {
    double peak = 1e-3;
    double floor = 0.0;
    std::uint64_t warmup = 0;
    std::uint64_t total = 1;
    double gamma = 0.1;      ///< only "step"
    std::uint64_t every = 0; ///< only "step"; 0 means a third of the steps after the warm-up
    std::uint64_t decay = 0; ///< only "wsd"; 0 means a fifth of the steps after the warm-up
    decay_form form = decay_form::linear; ///< only "wsd"
};

/// The schedule called "constant", "cosine", "linear", "step" or "wsd"; errc::usage for another
/// name or for numbers that make no sense.
[[nodiscard]] result<schedule> make_schedule(std::string_view name, schedule_settings s);

} // namespace skein::train

#if SKEIN_HEADER_ONLY
#include <skein/train/detail/schedule.ipp>
#endif
