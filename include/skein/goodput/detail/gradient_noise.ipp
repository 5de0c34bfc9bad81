// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/goodput/gradient_noise.hpp>.

#include <skein/core/error.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include <fmt/core.h>

namespace skein::goodput {

SKEIN_INLINE gradient_squares differenced(double before, double now, double mean) noexcept {
    return {.count = 2, .local = (before + now) / 2, .total = mean};
}

SKEIN_INLINE std::optional<gradient_moments> moments_of(const gradient_squares& step,
                                                        double scale) noexcept {
    if (step.count < 2) return std::nullopt;
    const double many = step.count;
    const gradient_moments now{.sqr = (many * step.total - step.local) / (many - 1),
                               .var = (step.local - step.total) * scale / (many - 1)};
    if (!std::isfinite(now.sqr) || !std::isfinite(now.var)) return std::nullopt;
    return now;
}

SKEIN_INLINE double gain_of(const gradient_moments& now, double scale) noexcept {
    const double divisor = now.var / scale + now.sqr;
    return divisor > 0 ? (now.var + now.sqr) / divisor : 1.0;
}

SKEIN_INLINE gradient_noise::gradient_noise(std::size_t groups, double smoothing)
    : smoothing_(smoothing) {
    if (groups == 0) throw error(errc::invalid_argument, "gradient_noise of no parameter group");
    if (!(smoothing > 0 && smoothing < 1))
        throw error(errc::invalid_argument,
                    fmt::format("gradient_noise with a smoothing of {}", smoothing))
            .with_hint("use a number between 0 and 1, e.g. 0.999");
    memory_.sqr.assign(groups, 0.0);
    memory_.var.assign(groups, 0.0);
}

SKEIN_INLINE bool gradient_noise::take(std::span<const gradient_squares> groups, double scale,
                                       bool is_differenced) {
    if (groups.size() != memory_.sqr.size())
        throw error(errc::invalid_argument,
                    fmt::format("squares of {} parameter groups, there are {}", groups.size(),
                                memory_.sqr.size()));
    if (!(scale > 0) || !std::isfinite(scale))
        throw error(errc::invalid_argument,
                    fmt::format("a step of {} times the first batch", scale));
    std::vector<gradient_moments> now;
    for (const auto& group : groups) {
        const auto moments = moments_of(group, scale);
        if (!moments) return false;
        now.push_back(*moments);
    }
    if (memory_.is_differenced && !is_differenced)
        *this = gradient_noise(groups.size(), smoothing_);
    if (memory_.steps == 0) memory_.is_differenced = is_differenced;
    // Better numbers are there: those of a step with one gradient would make them worse.
    if (is_differenced && !memory_.is_differenced) return false;
    const double keep = std::pow(smoothing_, scale);
    for (std::size_t i = 0; i < now.size(); ++i) {
        memory_.sqr[i] = keep * memory_.sqr[i] + (1 - keep) * now[i].sqr;
        memory_.var[i] = keep * memory_.var[i] + (1 - keep) * now[i].var;
    }
    memory_.weight = keep * memory_.weight + (1 - keep);
    memory_.steps += 1;
    return true;
}

SKEIN_INLINE gradient_moments gradient_noise::raw(std::size_t group) const {
    if (memory_.steps == 0) return {};
    return {.sqr = memory_.sqr.at(group) / memory_.weight,
            .var = memory_.var.at(group) / memory_.weight};
}

SKEIN_INLINE gradient_moments gradient_noise::of(std::size_t group) const {
    const auto now = raw(group);
    return {.sqr = std::max(now.sqr, 0.0), .var = std::max(now.var, least_variance)};
}

SKEIN_INLINE gradient_moments gradient_noise::all() const {
    gradient_moments sum{.sqr = 0.0, .var = 0.0};
    for (std::size_t i = 0; i < groups(); ++i) {
        const auto one = of(i);
        sum.sqr += one.sqr;
        sum.var += one.var;
    }
    return sum;
}

SKEIN_INLINE double gradient_noise::noise_scale() const {
    const auto now = all();
    return now.sqr > 0 ? now.var / now.sqr : std::numeric_limits<double>::infinity();
}

SKEIN_INLINE void gradient_noise::restore(memory saved) {
    const auto finite = [](const std::vector<double>& all) {
        return std::ranges::all_of(all, [](double each) { return std::isfinite(each); });
    };
    const bool fits = saved.sqr.size() == groups() && saved.var.size() == groups();
    const bool is_state = finite(saved.sqr) && finite(saved.var) && saved.weight >= 0 &&
                          saved.weight <= 1 && (saved.weight > 0) == (saved.steps > 0);
    if (!fits || !is_state)
        throw error(errc::malformed,
                    fits ? std::string("averages of gradients that no training has")
                         : fmt::format("averages of {} parameter groups, there are {}",
                                       saved.sqr.size(), groups()))
            .with_hint("go on from another checkpoint, or train with the groups of that one");
    memory_ = std::move(saved);
}

} // namespace skein::goodput
