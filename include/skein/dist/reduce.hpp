// SPDX-License-Identifier: Apache-2.0
#pragma once
// The arithmetic of collectives: element-wise sum, mean, max and min in a fixed order.
//
// The result of element i depends only on the values and the order of the sources: loops are cut
// into blocks for the vector unit, but no sum is ever regrouped, so all compilers and machines give
// the same bits (NaN payloads excepted). bfloat16 and half are added in float32 and rounded once,
// to nearest even. max and min give NaN as soon as one side is NaN.
//
//     const void* parts[] = {of_rank_0, of_rank_1, of_rank_2};
//     reduce(out, parts, n, dtype::f32, reduce_op::mean, 3);   // ((p0 + p1) + p2) / 3

#include <skein/dist/buffer.hpp>

#include <cstddef>
#include <span>

namespace skein::dist {

/// dst[i] = sources[0][i] op sources[1][i] op ..., from left to right.
///   dst      n elements; may be exactly one of the sources, no other overlap
///   sources  one or more pointers to n elements; one source is copied
///   divisor  for mean: what the sum is divided by, once, at the end
void reduce(void* dst, std::span<const void* const> sources, std::size_t n, dtype type,
            reduce_op op, int divisor) noexcept;

/// The same with a result of another type: `to` and `type` are each f32, bf16 or f16. Into f32
/// nothing is rounded but the float32 sums.
void reduce(void* dst, dtype to, std::span<const void* const> sources, std::size_t n, dtype type,
            reduce_op op, int divisor) noexcept;

/// n elements of one type, as one source among others.
struct operand {
    const void* data = nullptr;
    dtype type = dtype::f32;
};

/// The same with sources of several types, each f32, bf16 or f16: all are widened to float32,
/// combined from left to right, and rounded to `to` once.
void reduce_wide(void* dst, dtype to, std::span<const operand> sources, std::size_t n, reduce_op op,
                 int divisor) noexcept;

/// dst[i] = a[i] op b[i]; mean divides the sum by divisor (1: leaves the sum).
void reduce(void* dst, const void* a, const void* b, std::size_t n, dtype type, reduce_op op,
            int divisor) noexcept;

} // namespace skein::dist

#if SKEIN_HEADER_ONLY
#include <skein/dist/detail/reduce.ipp>
#endif
