// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/data/detail/resize_kernels.hpp>.

#include <algorithm>

SKEIN_EXACT_BEGIN
namespace skein::data::detail {

using u8x8 [[gnu::vector_size(8)]] = std::uint8_t;

SKEIN_ALWAYS_INLINE std::uint8_t byte_of(std::int32_t sum) {
    return static_cast<std::uint8_t>(std::clamp(sum >> weight_bits, 0, 255));
}

template <int C>
SKEIN_ALWAYS_INLINE void across_body(const resize_row& row, const resize_weights& weights) {
    for (std::size_t x = 0; x < row.width; ++x)
        for (int c = 0; c < C; ++c) row.wide[4 * x + c] = row.from[x * C + c];
    for (std::size_t x = 0; x < weights.first.size(); ++x) {
        const std::int32_t* const weight = weights.weight.data() + x * weights.most;
        const std::int32_t* at = row.wide + 4 * std::ptrdiff_t{weights.first[x]};
        i32x4 sum = i32x4{} + (1 << (weight_bits - 1));
        for (std::int32_t tap = 0; tap < weights.taps[x]; ++tap, at += 4) {
            i32x4 pixel;
            __builtin_memcpy(&pixel, at, sizeof pixel);
            sum += pixel * weight[tap];
        }
        for (int c = 0; c < C; ++c) row.to[x * C + c] = byte_of(sum[c]);
    }
}

SKEIN_ALWAYS_INLINE void across_any(const resize_row& row, const resize_weights& weights) {
    switch (row.channels) {
    case 1: return across_body<1>(row, weights);
    case 2: return across_body<2>(row, weights);
    case 3: return across_body<3>(row, weights);
    default: return across_body<4>(row, weights);
    }
}

SKEIN_ALWAYS_INLINE void down_body(const resize_column& column) {
    std::size_t i = 0;
    for (; i + 8 <= column.count; i += 8) {
        i32x8 sum = i32x8{} + (1 << (weight_bits - 1));
        const std::uint8_t* at = column.from + i;
        for (std::int32_t tap = 0; tap < column.taps; ++tap, at += column.step) {
            u8x8 values;
            __builtin_memcpy(&values, at, sizeof values);
            sum += __builtin_convertvector(values, i32x8) * column.weight[tap];
        }
        sum = sum >> weight_bits;
        sum = sum & (sum > 0);
        sum = (sum & (sum < 255)) | (255 & (sum >= 255));
        const u8x8 made = __builtin_convertvector(sum, u8x8);
        __builtin_memcpy(column.to + i, &made, sizeof made);
    }
    for (; i < column.count; ++i) {
        std::int32_t sum = 1 << (weight_bits - 1);
        for (std::int32_t tap = 0; tap < column.taps; ++tap)
            sum +=
                column.from[i + static_cast<std::size_t>(tap * column.step)] * column.weight[tap];
        column.to[i] = byte_of(sum);
    }
}

SKEIN_INLINE void resize_across(const resize_row& row, const resize_weights& weights) {
    across_any(row, weights);
}
SKEIN_AVX2 SKEIN_INLINE void resize_across_avx2(const resize_row& row,
                                                const resize_weights& weights) {
    across_any(row, weights);
}
SKEIN_INLINE void resize_down(const resize_column& column) { down_body(column); }
SKEIN_AVX2 SKEIN_INLINE void resize_down_avx2(const resize_column& column) { down_body(column); }

} // namespace skein::data::detail
SKEIN_EXACT_END
