// SPDX-License-Identifier: Apache-2.0
#pragma once
// The loops of widen() and narrow().

#include <skein/core/check.hpp>
#include <skein/dist/buffer.hpp>
#include <skein/dist/detail/reduce_loops.hpp>

#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace skein::dist {

namespace detail {

SKEIN_INLINE void widen_f16_plain(float* to, const f16_t* from, std::size_t n) noexcept {
    for (std::size_t i = 0; i < n; ++i) to[i] = to_float(from[i]);
}
SKEIN_INLINE void narrow_f16_plain(f16_t* to, const float* from, std::size_t n) noexcept {
    for (std::size_t i = 0; i < n; ++i) to[i] = to_f16(from[i]);
}

#if defined(__x86_64__)
// The compilers' own names for the instructions: <immintrin.h> is ten times what this file needs.
using eight_floats = float __attribute__((vector_size(32)));
using eight_halves = short __attribute__((vector_size(16)));

SKEIN_INLINE bool has_f16c() noexcept {
    static const bool found = [] {
        unsigned a = 0, b = 0, c = 0, d = 0;
        // AVX as well: it says that the system keeps the wide registers.
        return __builtin_cpu_supports("avx") != 0 && __get_cpuid(1, &a, &b, &c, &d) != 0 &&
               (c & bit_F16C) != 0;
    }();
    return found;
}
[[gnu::target("avx,f16c")]] SKEIN_INLINE void widen_f16_f16c(float* to, const f16_t* from,
                                                             std::size_t n) noexcept {
    std::size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        eight_halves halves;
        std::memcpy(&halves, from + i, sizeof halves);
        const eight_floats floats = __builtin_ia32_vcvtph2ps256(halves);
        std::memcpy(to + i, &floats, sizeof floats);
    }
    widen_f16_plain(to + i, from + i, n - i);
}
[[gnu::target("avx,f16c")]] SKEIN_INLINE void narrow_f16_f16c(f16_t* to, const float* from,
                                                              std::size_t n) noexcept {
    std::size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        eight_floats floats;
        std::memcpy(&floats, from + i, sizeof floats);
        const eight_halves halves = __builtin_ia32_vcvtps2ph256(floats, 0); // to nearest even
        std::memcpy(static_cast<void*>(to + i), &halves, sizeof halves);
    }
    narrow_f16_plain(to + i, from + i, n - i);
}
#else
SKEIN_INLINE bool has_f16c() noexcept { return false; }
SKEIN_INLINE void widen_f16_f16c(float* to, const f16_t* from, std::size_t n) noexcept {
    widen_f16_plain(to, from, n);
}
SKEIN_INLINE void narrow_f16_f16c(f16_t* to, const float* from, std::size_t n) noexcept {
    narrow_f16_plain(to, from, n);
}
#endif

SKEIN_INLINE void widen_bf16(float* to, const bf16_t* from, std::size_t n) noexcept {
    zip(to, from, from, n, [](bf16_t x, bf16_t) { return to_float(x); });
}
SKEIN_INLINE void narrow_bf16(bf16_t* to, const float* from, std::size_t n) noexcept {
    zip(to, from, from, n, [](float x, float) { return to_bf16(x); });
}

} // namespace detail

SKEIN_INLINE void widen(float* to, const void* from, dtype type, std::size_t n) noexcept {
    if (n == 0) return;
    switch (type) {
    case dtype::f32: std::memcpy(to, from, n * sizeof(float)); return;
    case dtype::bf16: return detail::widen_bf16(to, static_cast<const bf16_t*>(from), n);
    case dtype::f16: {
        const auto* const halves = static_cast<const f16_t*>(from);
        if (detail::has_f16c()) return detail::widen_f16_f16c(to, halves, n);
        return detail::widen_f16_plain(to, halves, n);
    }
    default: SKEIN_CHECK(false, "{} is not widened to f32", to_string(type));
    }
}

SKEIN_INLINE void narrow(void* to, dtype type, const float* from, std::size_t n) noexcept {
    if (n == 0) return;
    switch (type) {
    case dtype::f32: std::memcpy(to, from, n * sizeof(float)); return;
    case dtype::bf16: return detail::narrow_bf16(static_cast<bf16_t*>(to), from, n);
    case dtype::f16: {
        auto* const halves = static_cast<f16_t*>(to);
        if (detail::has_f16c()) return detail::narrow_f16_f16c(halves, from, n);
        return detail::narrow_f16_plain(halves, from, n);
    }
    default: SKEIN_CHECK(false, "f32 is not narrowed to {}", to_string(type));
    }
}

} // namespace skein::dist
