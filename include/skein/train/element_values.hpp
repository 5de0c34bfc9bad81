// SPDX-License-Identifier: Apache-2.0
#pragma once
// Elements of tensors as numbers, whatever their type, where there is no LibTorch.
//
//     std::vector<double> values(bytes.size() / 2);
//     read_values("BF16", bytes, values);
//     write_values("F16", values, into);         // rounded once, to the nearest, of two to the even
//
// Floating point goes through double without loss. Whole numbers beyond 2^53 are rounded.

#include <skein/core/bytes.hpp>

#include <span>
#include <string_view>

namespace skein::train {

/// F64, F32, F16, BF16: what can be cast and averaged.
[[nodiscard]] constexpr bool is_float_type(std::string_view dtype) noexcept {
    return dtype == "F32" || dtype == "F64" || dtype == "F16" || dtype == "BF16";
}

/// Types whose elements are read as numbers: those of floating point and the whole ones; not complex
/// numbers and those of 8 bits with an exponent.
[[nodiscard]] bool has_values(std::string_view dtype) noexcept;

/// The elements of `bytes`, as many as `into` has. Throws not_supported for a type without
/// has_values(), invalid_argument when the sizes do not agree.
void read_values(std::string_view dtype, byte_span bytes, std::span<double> into);

/// The same back, for types of floating point. What is too large becomes infinite; a NaN stays one.
void write_values(std::string_view dtype, std::span<const double> values, mut_byte_span into);

/// Elements of one type of floating point as those of another one.
[[nodiscard]] byte_buffer cast_elements(byte_span from, std::string_view from_type,
                                        std::string_view to_type);

} // namespace skein::train

#if SKEIN_HEADER_ONLY
#include <skein/train/detail/element_values.ipp>
#endif
