// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/data/detail/self_test.hpp>.

#include <skein/core/error.hpp>
#include <skein/data/detail/draws_kernels.hpp>

#include <array>
#include <bit>
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
    return hash;
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
