// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/goodput/goodput.hpp>.

#include <skein/core/error.hpp>

#include <algorithm>
#include <cmath>

#include <fmt/core.h>

namespace skein::goodput {

SKEIN_INLINE double goodput_model::efficiency(double batch) const noexcept {
    const double scale = batch / static_cast<double>(first_batch);
    return gain_of(gradients, scale) / scale;
}

SKEIN_INLINE double goodput_model::goodput(const step_shape& step) const noexcept {
    return time.throughput(step) * efficiency(static_cast<double>(step.batch()));
}

namespace detail {
SKEIN_INLINE void require_limits(const goodput_model& model, const batch_limits& in) {
    const auto refuse = [](std::string what) {
        throw error(errc::invalid_argument, "no batch can be chosen: " + what);
    };
    if (model.first_batch < 1) refuse(fmt::format("a first batch of {}", model.first_batch));
    if (in.nodes < 1 || in.ranks < in.nodes)
        refuse(fmt::format("{} ranks on {} nodes", in.ranks, in.nodes));
    if (in.most < model.first_batch)
        refuse(
            fmt::format("at most {} samples, the first batch has {}", in.most, model.first_batch));
    if (in.micro_least < 1 || (in.micro_most != 0 && in.micro_most < in.micro_least))
        refuse(fmt::format("{} to {} samples of a rank at once", in.micro_least, in.micro_most));
}
} // namespace detail

SKEIN_INLINE batch_choice goodput_model::best(const batch_limits& in) const {
    detail::require_limits(*this, in);
    constexpr int candidates = 50;
    constexpr double slack = 1e-8; // of what is rounded up
    const double ranks = in.ranks, first = static_cast<double>(first_batch);
    const auto micro_most = static_cast<double>(in.micro_most > 0 ? in.micro_most : in.most);
    const double from = std::log(std::max(first, static_cast<double>(in.micro_least) * ranks));
    const double to = std::log(static_cast<double>(in.most));
    batch_choice best;
    if (from > to) return best; // the ranks' least is more than there may be
    for (int i = 0; i < candidates; ++i) {
        const double local =
            std::exp(from + (to - from) * i / (candidates - 1)) / ranks; // samples of a rank
        double parts = 1;
        const bool is_blind = in.ranks == 1 && !in.sees_parts;
        double micro = is_blind ? first : std::ceil(local - slack);
        if (in.accumulation) {
            parts = std::max(std::ceil(local / micro_most - slack), 1.0);
            if (is_blind && local > first + slack) parts = std::max(parts, 2.0);
            micro = std::ceil(local / parts - slack);
        }
        if (micro < static_cast<double>(in.micro_least) || micro > micro_most) continue;
        const step_shape shape{.nodes = in.nodes,
                               .ranks = in.ranks,
                               .micro_batch = static_cast<std::int64_t>(micro),
                               .accumulation = static_cast<std::int64_t>(parts) - 1};
        if (const double here = goodput(shape); here > best.goodput) best = {shape, here};
    }
    return best;
}

} // namespace skein::goodput
