// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/train/shard_layout.hpp>.

#include <skein/core/check.hpp>

#include <algorithm>
#include <numeric>

namespace skein::train {

SKEIN_INLINE flat_range overlap(flat_range a, flat_range b) noexcept {
    const auto begin = std::max(a.begin, b.begin), end = std::min(a.end, b.end);
    return begin < end ? flat_range{begin, end} : flat_range{a.begin, a.begin};
}

namespace detail {

/// The allowed cut nearest to `wanted`, which lies inside the parameter; of two the lower.
SKEIN_INLINE std::int64_t nearest_cut(const placed_parameter& p, std::int64_t wanted) {
    const auto end = p.offset + padded_count(p.count);
    // Rows whose first element is a multiple of the alignment come every `step` elements.
    const auto step = p.row / std::gcd(p.row, flat_alignment) * flat_alignment;
    const auto below = p.offset + (wanted - p.offset) / step * step;
    const auto above = below + step >= p.offset + p.count ? end : below + step;
    return wanted - below <= above - wanted ? below : above;
}

} // namespace detail

SKEIN_INLINE std::vector<flat_range> cut_unit(std::span<const placed_parameter> parameters,
                                              flat_range unit, int shards) {
    SKEIN_CHECK(shards >= 1, "a unit cut into {} pieces", shards);
    std::vector<flat_range> pieces;
    auto at = unit.begin;
    for (int r = 1; r <= shards; ++r) {
        const auto wanted = unit.begin + unit.size() * r / shards;
        auto cut = unit.end;
        if (r < shards) {
            const auto inside = std::ranges::find_if(parameters, [&](const placed_parameter& p) {
                return wanted < p.offset + padded_count(p.count);
            });
            if (inside != parameters.end()) cut = detail::nearest_cut(*inside, wanted);
        }
        cut = std::max(cut, at);
        pieces.push_back({at, cut});
        at = cut;
    }
    return pieces;
}

} // namespace skein::train
