// SPDX-License-Identifier: Apache-2.0
#pragma once
// Where the parameters of a unit lie in a flat buffer, and where the buffer is cut between ranks.
//
// A unit is what travels together: a transformer block, a bucket, or what is left at the root. Its
// parameters lie one behind the other, each at a multiple of 16 elements. A cut lies on a row of a
// parameter and on 16 elements, so that every rank's piece of every parameter is a rectangle of
// whole rows, and kernels see the same alignment however the unit is cut. Pieces are as even as
// rows allow and never padded.
//
//     const auto cuts = cut_unit(parameters, {0, size}, 4);   // four ranges, adjacent, in order

#include <skein/core/config.hpp>

#include <cstdint>
#include <span>
#include <vector>

namespace skein::train {

/// Elements [begin, end) of a flat buffer.
struct flat_range {
    std::int64_t begin = 0;
    std::int64_t end = 0;

    [[nodiscard]] std::int64_t size() const noexcept { return end - begin; }
    [[nodiscard]] bool empty() const noexcept { return begin == end; }
    friend bool operator==(flat_range, flat_range) = default;
};

/// What two ranges have in common; empty at `a.begin` when that is nothing.
[[nodiscard]] flat_range overlap(flat_range a, flat_range b) noexcept;

/// Every parameter begins at a multiple of so many elements: 64 bytes of float32.
inline constexpr std::int64_t flat_alignment = 16;

/// `count` elements, up to where the next parameter may begin.
[[nodiscard]] constexpr std::int64_t padded_count(std::int64_t count) noexcept {
    return (count + flat_alignment - 1) / flat_alignment * flat_alignment;
}

/// One parameter's place in a flat buffer.
struct placed_parameter {
    std::int64_t offset = 0; ///< a multiple of flat_alignment
    std::int64_t count = 0;  ///< elements, without padding
    std::int64_t row = 1;    ///< elements that one index of dimension 0 spans; at least 1
};

/// The pieces of `shards` ranks: adjacent, in rank order, together `unit`. A piece may be empty.
///   parameters  of the unit, in order of offset; the first begins where the unit does
///   unit        ends on a multiple of flat_alignment
[[nodiscard]] std::vector<flat_range> cut_unit(std::span<const placed_parameter> parameters,
                                               flat_range unit, int shards);

} // namespace skein::train

#if SKEIN_HEADER_ONLY
#include <skein/train/detail/shard_layout.ipp>
#endif
