// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/goodput/step_time.hpp> but for the fit.

#include <skein/core/config.hpp>
#include <skein/core/error.hpp>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

namespace skein::goodput {

namespace detail {
inline constexpr double least_seconds = 1e-8; // what takes no time takes this
} // namespace detail

SKEIN_INLINE double step_time_model::micro_seconds(std::int64_t micro_batch) const noexcept {
    return alpha_c + beta_c * static_cast<double>(micro_batch);
}

SKEIN_INLINE double step_time_model::sync_seconds(int nodes, int ranks) const noexcept {
    const double more = std::max(static_cast<double>(ranks - 2), detail::least_seconds);
    if (nodes > 1) return alpha_n + beta_n * more;
    if (ranks > 1) return alpha_r + beta_r * more;
    return detail::least_seconds * (1 + more);
}

SKEIN_INLINE double step_time_model::last_seconds(const step_shape& step) const noexcept {
    const double compute = micro_seconds(step.micro_batch);
    const double sync = sync_seconds(step.nodes, step.ranks);
    return std::exp(std::log(std::pow(compute, gamma) + std::pow(sync, gamma)) / gamma);
}

SKEIN_INLINE double step_time_model::step_seconds(const step_shape& step) const noexcept {
    return static_cast<double>(step.accumulation) * micro_seconds(step.micro_batch) +
           last_seconds(step);
}

SKEIN_INLINE double step_time_model::throughput(const step_shape& step) const noexcept {
    return static_cast<double>(step.batch()) / step_seconds(step);
}

SKEIN_INLINE bool step_times::add(const step_shape& shape, double micro_seconds,
                                  double last_seconds) {
    const auto is_time = [](double seconds) { return seconds > 0 && std::isfinite(seconds); };
    if (!is_time(micro_seconds) || !is_time(last_seconds)) return false;
    const std::tuple key{shape.nodes, shape.ranks, shape.micro_batch};
    auto& of = sums_[key];
    of.micro += micro_seconds;
    of.last += last_seconds;
    of.count += 1;
    if (of.count >= most_counted) of = {of.micro / 2, of.last / 2, of.count / 2};
    if (sums_.size() > most_shapes) // never the new one
        sums_.erase(std::ranges::min_element(sums_, {}, [&](const auto& each) {
            return each.first == key ? most_counted : each.second.count;
        }));
    return true;
}

SKEIN_INLINE double step_times::last_seconds(const step_shape& shape) const {
    const auto found = sums_.find({shape.nodes, shape.ranks, shape.micro_batch});
    return found == sums_.end() ? 0.0 : found->second.last / found->second.count;
}

SKEIN_INLINE void step_times::restore(sums saved) {
    const auto is_right = [](const auto& each) {
        const auto [nodes, ranks, micro_batch] = each.first;
        const auto& of = each.second;
        const auto is_time = [](double total) { return total > 0 && std::isfinite(total); };
        return nodes >= 1 && ranks >= nodes && micro_batch >= 1 && is_time(of.micro) &&
               is_time(of.last) && of.count >= 1 && of.count <= most_counted;
    };
    if (saved.size() > most_shapes || !std::ranges::all_of(saved, is_right))
        throw error(errc::malformed, "times of steps that cannot be");
    sums_ = std::move(saved);
}

SKEIN_INLINE std::vector<step_time> step_times::means() const {
    std::vector<step_time> all;
    for (const auto& [key, of] : sums_) {
        const auto [nodes, ranks, micro_batch] = key;
        all.push_back({.shape = {.nodes = nodes, .ranks = ranks, .micro_batch = micro_batch},
                       .micro_seconds = of.micro / of.count,
                       .last_seconds = of.last / of.count});
    }
    return all;
}

} // namespace skein::goodput
