// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/data/detail/self_test.hpp>.

#include <skein/core/error.hpp>
#include <skein/data/detail/blur_kernels.hpp>
#include <skein/data/detail/draws_kernels.hpp>
#include <skein/data/detail/exact_math.hpp>

#include <array>
#include <bit>
#include <cstddef>
#include <span>

#include <fmt/format.h>

namespace skein::data::detail {

SKEIN_INLINE std::uint64_t hash_of_kernels() {
    std::uint64_t hash = 0xcbf29ce484222325ULL;
    const auto add = [&](std::span<const float> values) {
        for (const float each : values)
            hash = (hash ^ std::bit_cast<std::uint32_t>(each)) * 0x100000001b3ULL;
    };
    std::array<float, 1024> values{};
    const auto fill = has_avx2() ? fill_groups_avx2 : fill_groups;
    fill(values.data(), values.size(), {1, 2, 3}, true);
    add(values);
    fill(values.data(), values.size(), {1, 2, 3}, false);
    add(values);
    // A width that has blocks of 32, of 8, and single values.
    constexpr std::ptrdiff_t height = 20, width = 45, radius = 3;
    constexpr std::array<float, radius + 1> half{0.4f, 0.2f, 0.07f, 0.03f};
    std::array<float, height * width> filtered{};
    std::array<float, filter_run::band*(width + 2 * radius)> columns{};
    std::array<const float*, filter_run::band + 2 * radius> rows{};
    const auto filter = has_avx2() ? filter_plane_avx2 : filter_plane;
    filter({filtered.data(), values.data(), height, width, radius, half.data(), columns.data(),
            rows.data()});
    add(filtered);
    return (hash ^ std::bit_cast<std::uint64_t>(exponent_of(-1.7) + logarithm_of(1.3))) *
           0x100000001b3ULL;
}

SKEIN_INLINE void require_exact_kernels() {
    static const std::uint64_t seen = hash_of_kernels();
    if (seen == expected_hash) return;
    throw error(errc::mismatch, fmt::format("kernels of skein::data give other bits here ({:016x}) "
                                            "than elsewhere ({:016x})",
                                            seen, expected_hash))
        .with_hint("compile without -ffast-math, -Ofast and -ffp-contract=fast");
}

} // namespace skein::data::detail
