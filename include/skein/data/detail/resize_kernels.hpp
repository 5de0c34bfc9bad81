// SPDX-License-Identifier: Apache-2.0
#pragma once
// The two passes of a resize: sums of bytes times weights of 22 bits, exact in 32 bits.

#include <skein/data/detail/vectors.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace skein::data::detail {

/// Bits behind the point of a weight, as Pillow's.
inline constexpr int weight_bits = 22;

/// What each result is made of: `taps` weights from `first` on; they stand at results * most.
struct resize_weights {
    std::span<std::int32_t> first, taps, weight;
    std::int32_t most = 0;
};

/// One row of `channels` values a pixel; `wide` is scratch for 4 * pixels of the source.
struct resize_row {
    std::uint8_t* to = nullptr;
    const std::uint8_t* from = nullptr;
    std::int32_t* wide = nullptr;
    std::size_t width = 0; ///< of the source
    int channels = 0;
};
void resize_across(const resize_row& row, const resize_weights& weights);
SKEIN_AVX2 void resize_across_avx2(const resize_row& row, const resize_weights& weights);

/// One result row of `count` values out of `taps` rows that are `step` bytes apart.
struct resize_column {
    std::uint8_t* to = nullptr;
    const std::uint8_t* from = nullptr;
    std::ptrdiff_t step = 0;
    const std::int32_t* weight = nullptr;
    std::int32_t taps = 0;
    std::size_t count = 0;
};
void resize_down(const resize_column& column);
SKEIN_AVX2 void resize_down_avx2(const resize_column& column);

} // namespace skein::data::detail

#if SKEIN_HEADER_ONLY
#include <skein/data/detail/resize_kernels.ipp>
#endif
