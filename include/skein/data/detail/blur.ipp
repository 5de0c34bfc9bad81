// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/data/blur.hpp>.

#include <skein/core/error.hpp>
#include <skein/data/detail/blur_kernels.hpp>
#include <skein/data/detail/self_test.hpp>

#include <algorithm>
#include <vector>

#include <fmt/format.h>

namespace skein::data::detail {

SKEIN_INLINE void check_blur(const planes& of, int taps, std::span<const float> sigmas) {
    require_exact_kernels();
    if (taps < 1 || taps % 2 == 0)
        throw error(errc::invalid_argument,
                    fmt::format("a blur has an odd number of taps, not {}", taps));
    if (of.height <= taps / 2 || of.width <= taps / 2)
        throw error(errc::invalid_argument,
                    fmt::format("a blur of {} taps needs an image of at least {}x{}, not {}x{}",
                                taps, taps / 2 + 1, taps / 2 + 1, of.height, of.width));
    for (const float sigma : sigmas)
        if (!(sigma > 0))
            throw error(errc::invalid_argument,
                        fmt::format("the sigma of a blur is above 0, not {}", sigma));
}

/// One filter over all planes.
SKEIN_INLINE void filter_planes(const planes& of, std::span<const double> half) {
    const auto radius = half.size() - 1, width = static_cast<std::size_t>(of.width);
    auto& memory = arena::current();
    const auto taps = memory.array<float>(half.size());
    // No tap under 1e-30: what the processor makes of denormal numbers is a setting.
    std::ranges::transform(half, taps.begin(),
                           [](double tap) { return tap < 1e-30 ? 0.0f : static_cast<float>(tap); });
    filter_run run{of.to,
                   of.from,
                   of.height,
                   of.width,
                   static_cast<std::ptrdiff_t>(radius),
                   taps.data(),
                   memory.array<float>(filter_run::band * (width + 2 * radius)).data(),
                   memory.array<const float*>(filter_run::band + 2 * radius).data()};
    const auto filter = has_avx2() ? filter_plane_avx2 : filter_plane;
    for (std::int32_t plane = 0; plane < of.count; ++plane) {
        filter(run);
        run.to += run.height * run.width;
        run.from += run.height * run.width;
    }
}

SKEIN_INLINE void blur_planes(planes of, int taps, std::span<const float> sigmas, bool folded) {
    check_blur(of, taps, sigmas);
    const auto size = static_cast<std::size_t>(of.count) * static_cast<std::size_t>(of.height) *
                      static_cast<std::size_t>(of.width);
    if (sigmas.empty()) {
        std::copy_n(of.from, size, of.to);
        return;
    }
    if (folded) {
        const auto half = folded_half(taps, sigmas);
        if (half.size() <= static_cast<std::size_t>(std::min(of.height, of.width)))
            return filter_planes(of, half);
    }
    // From one buffer into the other, so that the last blur ends in `to`.
    auto now = of;
    float* const other = sigmas.size() > 1 ? arena::current().array<float>(size).data() : nullptr;
    for (std::size_t left = sigmas.size(); left > 0; --left) {
        now.to = left % 2 == 1 ? of.to : other;
        filter_planes(now, gaussian_half(taps, static_cast<double>(sigmas[sigmas.size() - left])));
        now.from = now.to;
    }
}

} // namespace skein::data::detail
