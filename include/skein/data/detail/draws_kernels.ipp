// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/data/detail/draws_kernels.hpp>.

#include <cmath>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

SKEIN_EXACT_BEGIN
namespace skein::data::detail {

using f32x4 [[gnu::vector_size(16)]] = float;
using u64x2 [[gnu::vector_size(16)]] = std::uint64_t;
using u64x4 [[gnu::vector_size(32)]] = std::uint64_t;

/// The products of the low halves of a's lanes and factor.
template <bool Avx2>
SKEIN_ALWAYS_INLINE void multiply_low(u64x4& to, const u64x4& a, std::uint32_t factor) {
#if defined(__x86_64__) && !defined(__clang__)
    // g++ multiplies 64 by 64 bits otherwise.
    if constexpr (Avx2) {
        const i32x8 by = i32x8{} + static_cast<int>(factor);
        to = (u64x4)__builtin_ia32_pmuludq256((i32x8)a, by);
    } else {
        __m128i half[2];
        __builtin_memcpy(half, &a, sizeof a);
        const auto by = _mm_set1_epi32(static_cast<int>(factor));
        half[0] = _mm_mul_epu32(half[0], by);
        half[1] = _mm_mul_epu32(half[1], by);
        __builtin_memcpy(&to, half, sizeof to);
    }
#else
    to = (a & 0xffffffffU) * std::uint64_t{factor};
#endif
}

/// The high and low halves of lane * factor.
template <bool Avx2>
SKEIN_ALWAYS_INLINE void multiply_wide(u32x8& high, u32x8& low, const u32x8& a,
                                       std::uint32_t factor) {
    u64x4 even, odd;
    multiply_low<Avx2>(even, (u64x4)a, factor);
    multiply_low<Avx2>(odd, (u64x4)a >> 32, factor);
    constexpr auto upper = ~std::uint64_t{0xffffffff};
    low = (u32x8)((even & ~upper) | (odd << 32));
    high = (u32x8)((even >> 32) | (odd & upper));
}

template <bool Avx2>
SKEIN_ALWAYS_INLINE void philox_group(u32x8 (&word)[4], const philox_place& from) {
    const u32x8 lane = {0, 1, 2, 3, 4, 5, 6, 7};
    const auto low = static_cast<std::uint32_t>(from.block);
    word[0] = low + lane;
    word[1] = static_cast<std::uint32_t>(from.block >> 32) - (u32x8)(word[0] < low);
    word[2] = u32x8{} + static_cast<std::uint32_t>(from.stream);
    word[3] = u32x8{} + static_cast<std::uint32_t>(from.stream >> 32);
    auto key0 = static_cast<std::uint32_t>(from.key);
    auto key1 = static_cast<std::uint32_t>(from.key >> 32);
    for (int round = 0; round < 10; ++round) {
        u32x8 high0, low0, high1, low1;
        multiply_wide<Avx2>(high0, low0, word[0], 0xD2511F53u);
        multiply_wide<Avx2>(high1, low1, word[2], 0xCD9E8D57u);
        word[0] = high1 ^ word[1] ^ key0;
        word[1] = low1;
        word[2] = high0 ^ word[3] ^ key1;
        word[3] = low0;
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
}

SKEIN_ALWAYS_INLINE void square_root(f32x8& of) {
#if defined(__x86_64__)
    const auto low = (f32x4)_mm_sqrt_ps((__m128)__builtin_shufflevector(of, of, 0, 1, 2, 3));
    const auto high = (f32x4)_mm_sqrt_ps((__m128)__builtin_shufflevector(of, of, 4, 5, 6, 7));
    of = __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7);
#else
    for (int lane = 0; lane < 8; ++lane) of[lane] = std::sqrt(of[lane]);
#endif
}

/// sqrt(-2 ln u), u = (word >> 8) + 1 over 2^24, in (0, 1].
SKEIN_ALWAYS_INLINE void radius_of(f32x8& to, const u32x8& word) {
    // u = 2^e m with m in [sqrt(1/2), sqrt(2)).
    const f32x8 whole = __builtin_convertvector((i32x8)(word >> 8) + 1, f32x8);
    const i32x8 shifted = (i32x8)whole + (0x3f800000 - 0x3f3504f3);
    const f32x8 e = __builtin_convertvector((shifted >> 23) - (127 + 24), f32x8);
    const f32x8 x = (f32x8)((shifted & 0x7fffff) + 0x3f3504f3) - 1.0f;
    const f32x8 z = x * x;
    f32x8 y = x * 7.0376836292e-2f - 1.1514610310e-1f;
    y = y * x + 1.1676998740e-1f;
    y = y * x - 1.2420140846e-1f;
    y = y * x + 1.4249322787e-1f;
    y = y * x - 1.6668057665e-1f;
    y = y * x + 2.0000714765e-1f;
    y = y * x - 2.4999993993e-1f;
    y = y * x + 3.3333331174e-1f;
    y = y * x * z;
    y = y - e * 2.12194440e-4f;
    y = y - z * 0.5f;
    // Never negative: x + y is not above 0 where e is 0, and -16.6 or less times ln 2 elsewhere.
    to = (x + y + e * 0.693359375f) * -2.0f;
    square_root(to);
}

/// Cosine and sine of word >> 8 times 2 pi / 2^24, less an eighth of a turn.
SKEIN_ALWAYS_INLINE void turn_of(f32x8& cosine, f32x8& sine, const u32x8& word) {
    const u32x8 quarter = word >> 30;
    const i32x8 within = (i32x8)(word >> 8 & 0x3fffff) - 0x200000;
    const f32x8 x = __builtin_convertvector(within, f32x8) * 3.7450702829238413e-7f;
    const f32x8 z = x * x;
    const f32x8 s = ((z * -1.9515295891e-4f + 8.3321608736e-3f) * z - 1.6666654611e-1f) * z * x + x;
    const f32x8 c =
        ((z * 2.443315711809948e-5f - 1.388731625493765e-3f) * z + 4.166664568298827e-2f) * z * z -
        z * 0.5f + 1.0f;
    // Turned by `quarter`: (c, s), (-s, c), (-c, -s), (s, -c).
    const i32x8 swap = (i32x8)((quarter & 1) == 1);
    const u32x8 minus_cosine = ((quarter + 1) & 2) << 30, minus_sine = (quarter & 2) << 30;
    cosine = (f32x8)((u32x8)((swap & (i32x8)s) | (~swap & (i32x8)c)) ^ minus_cosine);
    sine = (f32x8)((u32x8)((swap & (i32x8)c) | (~swap & (i32x8)s)) ^ minus_sine);
}

template <bool Avx2>
SKEIN_ALWAYS_INLINE void fill_body(float* to, std::size_t count, philox_place from, bool normal) {
    for (std::size_t at = 0; at < count; at += 32, from.block += 8) {
        u32x8 word[4];
        philox_group<Avx2>(word, from);
        for (int pair = 0; pair < 4; pair += 2) {
            f32x8 first, second;
            if (normal) {
                f32x8 radius;
                radius_of(radius, word[pair]);
                turn_of(first, second, word[pair + 1]);
                first *= radius;
                second *= radius;
            } else {
                first = __builtin_convertvector((i32x8)(word[pair] >> 8), f32x8) * 0x1p-24f;
                second = __builtin_convertvector((i32x8)(word[pair + 1] >> 8), f32x8) * 0x1p-24f;
            }
            store(to + at + 8 * pair, first);
            store(to + at + 8 * pair + 8, second);
        }
    }
}

SKEIN_INLINE void fill_groups(float* to, std::size_t count, philox_place from, bool normal) {
    fill_body<false>(to, count, from, normal);
}
SKEIN_AVX2 SKEIN_INLINE void fill_groups_avx2(float* to, std::size_t count, philox_place from,
                                              bool normal) {
    fill_body<true>(to, count, from, normal);
}

SKEIN_INLINE normal_pair normal_of(std::uint32_t radius, std::uint32_t angle) {
    f32x8 r, cosine, sine;
    radius_of(r, u32x8{radius});
    turn_of(cosine, sine, u32x8{angle});
    return {r[0] * cosine[0], r[0] * sine[0]};
}

} // namespace skein::data::detail
SKEIN_EXACT_END
