// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of core/crc32c.hpp. Its tables are computed by the compiler, a quarter of a second.

#include <skein/core/config.hpp>
#include <skein/core/bytes.hpp>

#include <array>
#include <cstddef>
#include <cstdint>

namespace skein {

namespace detail {

/// tables[k][b]: the effect of byte b followed by k zero bytes.
consteval std::array<std::array<std::uint32_t, 256>, 8> make_crc32c_tables() {
    std::array<std::array<std::uint32_t, 256>, 8> tables{};
    for (std::uint32_t b = 0; b < 256; ++b) {
        std::uint32_t r = b;
        for (int bit = 0; bit < 8; ++bit) r = (r & 1) != 0 ? (r >> 1) ^ 0x82F63B78u : r >> 1;
        tables[0][b] = r;
    }
    for (std::size_t k = 1; k < 8; ++k)
        for (std::uint32_t b = 0; b < 256; ++b)
            tables[k][b] = (tables[k - 1][b] >> 8) ^ tables[0][tables[k - 1][b] & 255];
    return tables;
}
inline constexpr auto crc32c_tables = make_crc32c_tables();

SKEIN_INLINE std::uint32_t crc32c_table(std::uint32_t crc, const std::byte* p,
                                        std::size_t n) noexcept {
    const auto& t = crc32c_tables;
    for (; n >= 8; n -= 8, p += 8) {
        const std::uint64_t v = load_le<std::uint64_t>(p) ^ crc;
        crc = t[7][v & 255] ^ t[6][(v >> 8) & 255] ^ t[5][(v >> 16) & 255] ^ t[4][(v >> 24) & 255] ^
              t[3][(v >> 32) & 255] ^ t[2][(v >> 40) & 255] ^ t[1][(v >> 48) & 255] ^ t[0][v >> 56];
    }
    for (; n > 0; --n, ++p)
        crc = (crc >> 8) ^ t[0][(crc ^ std::to_integer<std::uint32_t>(*p)) & 255];
    return crc;
}

#if defined(__x86_64__)
/// The linear map "advance a raw CRC state over `zeros` zero bytes", as four tables of bytes.
struct crc32c_shift {
    std::array<std::array<std::uint32_t, 256>, 4> tables{};

    explicit crc32c_shift(std::size_t zeros) noexcept {
        std::array<std::uint32_t, 32> bit{};
        for (std::uint32_t i = 0; i < 32; ++i) {
            std::uint32_t crc = 1u << i;
            for (std::size_t k = 0; k < zeros; ++k) crc = (crc >> 8) ^ crc32c_tables[0][crc & 255];
            bit[i] = crc;
        }
        for (std::size_t k = 0; k < 4; ++k)
            for (std::uint32_t b = 0; b < 256; ++b)
                for (std::uint32_t i = 0; i < 8; ++i)
                    if ((b >> i & 1) != 0) tables[k][b] ^= bit[8 * k + i];
    }
    std::uint32_t operator()(std::uint32_t crc) const noexcept {
        return tables[0][crc & 255] ^ tables[1][crc >> 8 & 255] ^ tables[2][crc >> 16 & 255] ^
               tables[3][crc >> 24];
    }
};

inline constexpr std::size_t crc32c_lane = 1024;

/// The instruction has latency 3 and throughput 1: three streams side by side, joined by shifts. It
/// goes by the name that compilers give it: <nmmintrin.h> is 2,400 lines for these few. Of the
/// whole triples of lanes at p.
__attribute__((target("sse4.2,crc32"))) SKEIN_INLINE std::uint32_t crc32c_lanes(
    std::uint32_t crc, const std::byte*& p, std::size_t& n) noexcept {
    constexpr std::size_t lane = crc32c_lane;
    static const crc32c_shift shift(lane);
    std::uint64_t c = crc;
    for (; n >= 3 * lane; n -= 3 * lane, p += 3 * lane) {
        std::uint64_t c1 = 0, c2 = 0;
        for (std::size_t i = 0; i < lane; i += 8) {
            c = __builtin_ia32_crc32di(c, load_le<std::uint64_t>(p + i));
            c1 = __builtin_ia32_crc32di(c1, load_le<std::uint64_t>(p + lane + i));
            c2 = __builtin_ia32_crc32di(c2, load_le<std::uint64_t>(p + 2 * lane + i));
        }
        c = shift(static_cast<std::uint32_t>(c)) ^ c1;
        c = shift(static_cast<std::uint32_t>(c)) ^ c2;
    }
    return static_cast<std::uint32_t>(c);
}

__attribute__((target("sse4.2,crc32"))) SKEIN_INLINE std::uint32_t crc32c_large(
    std::uint32_t crc, const std::byte* p, std::size_t n) noexcept;

/// Most are of a header or a small body: a few instructions, one after the other, in registers.
__attribute__((target("sse4.2,crc32"))) SKEIN_INLINE std::uint32_t crc32c_sse42(
    std::uint32_t crc, const std::byte* p, std::size_t n) noexcept {
    if (n >= 3 * crc32c_lane) [[unlikely]]
        return crc32c_large(crc, p, n);
    std::uint64_t c = crc;
    for (; n >= 8; n -= 8, p += 8) c = __builtin_ia32_crc32di(c, load_le<std::uint64_t>(p));
    auto r = static_cast<std::uint32_t>(c);
    if ((n & 4) != 0) {
        r = __builtin_ia32_crc32si(r, load_le<std::uint32_t>(p));
        p += 4;
    }
    if ((n & 2) != 0) {
        r = __builtin_ia32_crc32hi(r, load_le<std::uint16_t>(p));
        p += 2;
    }
    if ((n & 1) != 0) r = __builtin_ia32_crc32qi(r, std::to_integer<unsigned char>(*p));
    return r;
}

__attribute__((target("sse4.2,crc32"))) SKEIN_INLINE std::uint32_t crc32c_large(
    std::uint32_t crc, const std::byte* p, std::size_t n) noexcept {
    crc = crc32c_lanes(crc, p, n);
    return crc32c_sse42(crc, p, n);
}
#endif

} // namespace detail

SKEIN_INLINE bool crc32c_is_hardware() noexcept {
#if defined(__x86_64__)
    return __builtin_cpu_supports("sse4.2") != 0; // a look at what was asked before main
#else
    return false;
#endif
}

SKEIN_INLINE std::uint32_t crc32c(byte_span bytes, std::uint32_t seed) noexcept {
    const std::uint32_t start = ~seed;
#if defined(__x86_64__)
    if (crc32c_is_hardware()) return ~detail::crc32c_sse42(start, bytes.data(), bytes.size());
#endif
    return ~detail::crc32c_table(start, bytes.data(), bytes.size());
}

} // namespace skein
