// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/train/schedule.hpp>.

#include <skein/core/error.hpp>

#include <fmt/core.h>

namespace skein::train {

SKEIN_INLINE description schedule::describe(std::uint64_t steps) const {
    if (!said_.name.empty() || !said_.settings.empty()) return said_;
    description by_effect{.name = "callable"};
    constexpr std::uint64_t parts = 8;
    const auto last = steps > 0 ? steps - 1 : 0;
    for (std::uint64_t i = 0, before = 1; i <= parts; ++i) {
        const auto step = last / parts * i + last % parts * i / parts;
        if (i > 0 && step == before) continue;
        by_effect.add(fmt::format("learning rate of step {}", step), rate_(step));
        before = step;
    }
    return by_effect;
}

SKEIN_INLINE double learning_rate(const schedule& s, std::uint64_t step) {
    const double rate = s(step);
    if (rate >= 0.0 && std::isfinite(rate)) return rate;
    throw error(errc::usage, fmt::format("the schedule gives the rate {} at step {}", rate, step))
        .with_hint("a learning rate is a finite number that is not negative");
}

SKEIN_INLINE result<schedule> make_schedule(std::string_view name, schedule_settings s) {
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
    if (name == "wsd") {
        const auto rest = s.total > s.warmup ? s.total - s.warmup : 1;
        const auto decay = s.decay != 0 ? s.decay : std::max<std::uint64_t>(rest / 5, 1);
        if (s.decay > rest)
            return error(errc::usage, fmt::format("a decay of {} steps does not fit in the {} "
                                                  "steps after the warm-up",
                                                  s.decay, rest))
                .with_hint("the decay is the last part of the run: make it or the warm-up shorter");
        return schedule(warmup_stable_decay{s.peak, s.floor, s.warmup, decay, s.total, s.form});
    }
    return error(errc::usage, fmt::format("unknown schedule '{}'", name))
        .with_hint("one of constant, cosine, linear, step, wsd");
}

} // namespace skein::train
