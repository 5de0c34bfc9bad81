// SPDX-License-Identifier: Apache-2.0
#pragma once
// Philox and Box-Muller, eight blocks at a time.
//
// A group is eight blocks of four words, and 32 values: value 8 w + l comes from word w of block l.

#include <skein/data/detail/vectors.hpp>

#include <cstddef>
#include <cstdint>

namespace skein::data::detail {

/// Blocks `block` to `block + 7` of a stream.
struct philox_place {
    std::uint64_t key = 0, stream = 0, block = 0;
};

/// Fills whole groups: count is a multiple of 32.
///   normal  normal values; else uniform in [0, 1)
void fill_groups(float* to, std::size_t count, philox_place from, bool normal);
SKEIN_AVX2 void fill_groups_avx2(float* to, std::size_t count, philox_place from, bool normal);

/// The cosine and sine half of Box and Muller for one pair of words.
struct normal_pair {
    float cosine = 0, sine = 0;
};
normal_pair normal_of(std::uint32_t radius, std::uint32_t angle);

} // namespace skein::data::detail

#if SKEIN_HEADER_ONLY
#include <skein/data/detail/draws_kernels.ipp>
#endif
