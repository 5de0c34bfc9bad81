// SPDX-License-Identifier: Apache-2.0
#pragma once
// How the kernels are compiled: eight lanes, no contraction, and a second copy for AVX2.
//
// Bodies stand between SKEIN_EXACT_BEGIN and SKEIN_EXACT_END: a * b + c stays two roundings whatever
// the user's -march, so every machine and compiler gives the same bits. A kernel is one body,
// SKEIN_ALWAYS_INLINE, over lanes of eight; it is compiled once as the user says and once with
// SKEIN_AVX2, and has_avx2() chooses. Vectors are never parameters by value: their ABI depends on
// the target.

#include <skein/core/config.hpp>

#include <cstdint>

#if defined(__clang__)
#define SKEIN_EXACT_BEGIN _Pragma("float_control(push)") _Pragma("clang fp contract(off)")
#define SKEIN_EXACT_END _Pragma("float_control(pop)")
#else
// g++ warns of the ABI of vectors that the plain copy could pass; none is passed.
#define SKEIN_EXACT_BEGIN                                                                          \
    _Pragma("GCC push_options") _Pragma("GCC optimize(\"fp-contract=off\")")                       \
        _Pragma("GCC diagnostic push") _Pragma("GCC diagnostic ignored \"-Wpsabi\"")
#define SKEIN_EXACT_END _Pragma("GCC diagnostic pop") _Pragma("GCC pop_options")
#endif

#define SKEIN_ALWAYS_INLINE [[gnu::always_inline]] inline

#if defined(__x86_64__)
#define SKEIN_AVX2 [[gnu::target("avx2")]]
#else
#define SKEIN_AVX2
#endif

namespace skein::data::detail {

using f32x8 [[gnu::vector_size(32)]] = float;
using i32x8 [[gnu::vector_size(32)]] = std::int32_t;
using u32x8 [[gnu::vector_size(32)]] = std::uint32_t;
using i32x4 [[gnu::vector_size(16)]] = std::int32_t;

/// Whether this processor has AVX2.
[[nodiscard]] inline bool has_avx2() noexcept {
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx2") != 0;
#else
    return false;
#endif
}

/// Eight values that need not be aligned.
SKEIN_ALWAYS_INLINE void load(f32x8& to, const float* from) {
    __builtin_memcpy(&to, from, sizeof to);
}
SKEIN_ALWAYS_INLINE void store(float* to, const f32x8& from) {
    __builtin_memcpy(to, &from, sizeof from);
}

} // namespace skein::data::detail
