// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of core/sha256.hpp.

#include <skein/core/config.hpp>

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace skein {

namespace detail {

alignas(16) inline constexpr std::array<std::uint32_t, 64> sha256_rounds = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

SKEIN_INLINE void sha256_plain(sha256_state& state, const std::byte* from,
                               std::size_t blocks) noexcept {
    for (; blocks > 0; --blocks, from += 64) {
        std::array<std::uint32_t, 64> w{};
        for (std::size_t i = 0; i < 16; ++i)
            for (std::size_t k = 0; k < 4; ++k)
                w[i] = w[i] << 8 | std::to_integer<std::uint32_t>(from[4 * i + k]);
        for (std::size_t i = 16; i < 64; ++i) {
            const auto s0 = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ (w[i - 15] >> 3);
            const auto s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ (w[i - 2] >> 10);
            w[i] = w[i - 16] + s0 + w[i - 7] + s1;
        }
        auto [a, b, c, d, e, f, g, h] = state;
        for (std::size_t i = 0; i < 64; ++i) {
            const auto s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
            const auto t1 = h + s1 + ((e & f) ^ (~e & g)) + sha256_rounds[i] + w[i];
            const auto s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
            const auto t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
            h = g;
            g = f;
            f = e;
            e = d + t1;
            d = c;
            c = b;
            b = a;
            a = t1 + t2;
        }
        const sha256_state add = {a, b, c, d, e, f, g, h};
        for (std::size_t i = 0; i < 8; ++i) state[i] += add[i];
    }
}

#if defined(__x86_64__)
// Vectors and instructions go by the names that compilers give them: <immintrin.h> is tens of
// thousands of lines for these few.
using sha256_lanes = std::int32_t __attribute__((vector_size(16)));
using sha256_bytes = char __attribute__((vector_size(16)));

/// Both halves of the state, in the order in which the instruction has them.
struct sha256_halves {
    sha256_lanes feba, hgdc;
};

/// Four rounds with the words w of the message.
__attribute__((target("sha,sse4.1"), always_inline)) inline void sha256_four_rounds(
    sha256_halves& s, sha256_lanes w, std::size_t round) noexcept {
    sha256_lanes k;
    std::memcpy(&k, sha256_rounds.data() + round, sizeof k);
    k += w;
    s.hgdc = __builtin_ia32_sha256rnds2(s.hgdc, s.feba, k);
    s.feba = __builtin_ia32_sha256rnds2(s.feba, s.hgdc, __builtin_shufflevector(k, k, 2, 3, 0, 0));
}

/// The words w[t..t+3] from those before: w0 is w[t-16..t-13], w3 is w[t-4..t-1].
__attribute__((target("sha,sse4.1"), always_inline)) inline sha256_lanes sha256_next_words(
    sha256_lanes w0, sha256_lanes w1, sha256_lanes w2, sha256_lanes w3) noexcept {
    const auto seven_before = __builtin_shufflevector(w2, w3, 1, 2, 3, 4);
    return __builtin_ia32_sha256msg2(__builtin_ia32_sha256msg1(w0, w1) + seven_before, w3);
}

__attribute__((target("sha,sse4.1"), always_inline)) inline sha256_lanes sha256_words(
    const std::byte* from) noexcept {
    sha256_bytes b;
    std::memcpy(&b, from, sizeof b);
    b = __builtin_shufflevector(b, b, 3, 2, 1, 0, 7, 6, 5, 4, 11, 10, 9, 8, 15, 14, 13, 12);
    return std::bit_cast<sha256_lanes>(b);
}

__attribute__((target("sha,sse4.1"))) SKEIN_INLINE void sha256_by_instruction(
    sha256_state& state, const std::byte* from, std::size_t blocks) noexcept {
    const auto [a, b, c, d, e, f, g, h] = std::bit_cast<std::array<std::int32_t, 8>>(state);
    sha256_halves s{{f, e, b, a}, {h, g, d, c}};
    for (; blocks > 0; --blocks, from += 64) {
        const auto before = s;
        auto w0 = sha256_words(from), w1 = sha256_words(from + 16);
        auto w2 = sha256_words(from + 32), w3 = sha256_words(from + 48);
        sha256_four_rounds(s, w0, 0);
        sha256_four_rounds(s, w1, 4);
        sha256_four_rounds(s, w2, 8);
        sha256_four_rounds(s, w3, 12);
        for (std::size_t round = 16; round < 64; round += 16) {
            w0 = sha256_next_words(w0, w1, w2, w3);
            sha256_four_rounds(s, w0, round);
            w1 = sha256_next_words(w1, w2, w3, w0);
            sha256_four_rounds(s, w1, round + 4);
            w2 = sha256_next_words(w2, w3, w0, w1);
            sha256_four_rounds(s, w2, round + 8);
            w3 = sha256_next_words(w3, w0, w1, w2);
            sha256_four_rounds(s, w3, round + 12);
        }
        s.feba += before.feba;
        s.hgdc += before.hgdc;
    }
    const std::array<std::int32_t, 8> after = {s.feba[3], s.feba[2], s.hgdc[3], s.hgdc[2],
                                               s.feba[1], s.feba[0], s.hgdc[1], s.hgdc[0]};
    state = std::bit_cast<sha256_state>(after);
}
#endif

} // namespace detail

SKEIN_INLINE bool sha256_is_hardware() noexcept {
#if defined(__x86_64__)
    // Compilers of this age have no name for "sha" in __builtin_cpu_supports().
    static const bool has = [] {
        unsigned a = 0, b = 0, c = 0, d = 0;
        return __builtin_cpu_supports("sse4.1") != 0 &&
               __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b >> 29 & 1) != 0;
    }();
    return has;
#else
    return false;
#endif
}

SKEIN_INLINE void detail::sha256_blocks(sha256_state& state, const std::byte* from,
                                        std::size_t blocks) noexcept {
#if defined(__x86_64__)
    if (sha256_is_hardware()) return sha256_by_instruction(state, from, blocks);
#endif
    sha256_plain(state, from, blocks);
}

} // namespace skein
