// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/train/schedule.hpp>.

#include <skein/core/error.hpp>

#include <fmt/core.h>

namespace skein::train {

SKEIN_INLINE double learning_rate(const schedule& s, std::uint64_t step) noexcept {
    if (auto* p = std::get_if<constant_rate>(&s)) return (*p)(step);
    if (auto* p = std::get_if<warmup_cosine>(&s)) return (*p)(step);
    if (auto* p = std::get_if<warmup_linear>(&s)) return (*p)(step);
    if (auto* p = std::get_if<step_decay>(&s)) return (*p)(step);
    return 0.0;
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
    return error(errc::usage, fmt::format("unknown schedule '{}'", name))
        .with_hint("one of constant, cosine, linear, step");
}

} // namespace skein::train
