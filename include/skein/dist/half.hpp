// SPDX-License-Identifier: Apache-2.0
#pragma once
// Many bfloat16 or half values to float32 and back: exact one way, to nearest even the other.
//
//     std::vector<f16_t> halves = ...;
//     std::vector<float> wide(halves.size());
//     widen(wide.data(), halves.data(), dtype::f16, wide.size());
//     narrow(halves.data(), dtype::f16, wide.data(), wide.size());     // the same bits again
//
// Halves go through the processor's instructions (F16C) where it has them, else through to_f16()
// and to_float(): the same bits, some ten times slower.

#include <skein/dist/buffer.hpp>

#include <cstddef>

namespace skein::dist {

/// to[i] = from[i]; n elements of f32, bf16 or f16. No overlap.
void widen(float* to, const void* from, dtype type, std::size_t n) noexcept;

/// to[i] = from[i], rounded to nearest even; n elements of f32, bf16 or f16. No overlap.
void narrow(void* to, dtype type, const float* from, std::size_t n) noexcept;

namespace detail {

void widen_f16_plain(float* to, const f16_t* from, std::size_t n) noexcept;
void narrow_f16_plain(f16_t* to, const float* from, std::size_t n) noexcept;
[[nodiscard]] bool has_f16c() noexcept;
/// Only where has_f16c().
void widen_f16_f16c(float* to, const f16_t* from, std::size_t n) noexcept;
void narrow_f16_f16c(f16_t* to, const float* from, std::size_t n) noexcept;

} // namespace detail
} // namespace skein::dist

#if SKEIN_HEADER_ONLY
#include <skein/dist/detail/half.ipp>
#endif
