// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/train/element_values.hpp>.

#include <skein/core/error.hpp>
#include <skein/train/safetensors.hpp>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include <fmt/core.h>

namespace skein::train {

namespace detail {

/// Numbers of 16 bits with a sign, an exponent and a fraction, as IEEE 754 lays them out.
///   source: IEEE 754-2019, 3.4
template <int ExponentBits, int FractionBits>
struct small_float {
    static constexpr int bias = (1 << (ExponentBits - 1)) - 1;
    static constexpr int least_exponent = 1 - bias; // of numbers with a leading one
    static constexpr std::uint64_t infinity = ((1u << ExponentBits) - 1u) << FractionBits;

    [[nodiscard]] static double widen(std::uint16_t bits) noexcept {
        const bool negative = (bits >> 15) != 0;
        const std::uint64_t fraction = bits & ((1u << FractionBits) - 1u);
        const int exponent = (bits >> FractionBits) & ((1 << ExponentBits) - 1);
        const auto sign = std::uint64_t{negative} << 63;
        if (exponent == (1 << ExponentBits) - 1) // infinite, or no number
            return std::bit_cast<double>(sign | 0x7ffull << 52 | fraction << (52 - FractionBits));
        if (exponent == 0) {
            const double unit =
                std::bit_cast<double>(std::uint64_t(least_exponent - FractionBits + 1023) << 52);
            return (negative ? -unit : unit) * static_cast<double>(fraction);
        }
        return std::bit_cast<double>(sign | std::uint64_t(exponent - bias + 1023) << 52 |
                                     fraction << (52 - FractionBits));
    }

    /// To the nearest, of two to the even one.
    [[nodiscard]] static std::uint16_t narrow(double value) noexcept {
        const auto bits = std::bit_cast<std::uint64_t>(value);
        const auto sign = static_cast<std::uint16_t>(bits >> 63 << 15);
        const auto stored = static_cast<int>(bits >> 52 & 0x7ff);
        const auto low = bits & ((1ull << 52) - 1);
        if (stored == 0x7ff) // infinite, or no number: some bit of the fraction stays
            return static_cast<std::uint16_t>(sign | infinity |
                                              (low != 0 ? 1u << (FractionBits - 1) : 0u));
        if (stored == 0) return sign; // 0, or far below the smallest
        const int exponent = stored - 1023;
        const int below = std::max(0, least_exponent - exponent); // places lost at the lower end
        const int drop = 52 - FractionBits + below;
        if (drop > 54) return sign;
        const std::uint64_t digits = low | 1ull << 52;
        const auto rounded = (digits + (1ull << (drop - 1)) - 1 + (digits >> drop & 1)) >> drop;
        // The leading one of `rounded` counts as one more in the exponent, and so does its carry.
        const std::uint64_t made =
            (std::uint64_t(exponent + below - least_exponent) << FractionBits) + rounded;
        if (exponent > bias) return static_cast<std::uint16_t>(sign | infinity);
        return static_cast<std::uint16_t>(sign | std::min(made, infinity));
    }
};
using half_float = small_float<5, 10>;
using brain_float = small_float<8, 7>;

template <class T>
void widen_all(byte_span bytes, std::span<double> into) noexcept {
    for (std::size_t i = 0; i < into.size(); ++i) {
        T value;
        std::memcpy(&value, bytes.data() + i * sizeof value, sizeof value);
        into[i] = static_cast<double>(value);
    }
}

template <class Small>
void widen_small(byte_span bytes, std::span<double> into) noexcept {
    for (std::size_t i = 0; i < into.size(); ++i)
        into[i] = Small::widen(load_le<std::uint16_t>(bytes.data() + 2 * i));
}

template <class Small>
void narrow_all(std::span<const double> values, mut_byte_span into) noexcept {
    for (std::size_t i = 0; i < values.size(); ++i)
        store_le<std::uint16_t>(into.data() + 2 * i, Small::narrow(values[i]));
}

SKEIN_INLINE error no_values(std::string_view dtype) {
    return error(errc::not_supported,
                 fmt::format("not supported: elements of type {} as numbers", dtype));
}

SKEIN_INLINE void require_size(std::string_view dtype, std::size_t bytes, std::size_t elements) {
    if (const auto size = dtype_size(dtype); size && bytes != *size * elements)
        throw error(errc::invalid_argument,
                    fmt::format("{} bytes for {} elements of type {}", bytes, elements, dtype));
}

} // namespace detail

SKEIN_INLINE bool has_values(std::string_view dtype) noexcept {
    return is_float_type(dtype) || dtype == "I64" || dtype == "I32" || dtype == "I16" ||
           dtype == "I8" || dtype == "U64" || dtype == "U32" || dtype == "U16" || dtype == "U8" ||
           dtype == "BOOL";
}

SKEIN_INLINE void read_values(std::string_view dtype, byte_span bytes, std::span<double> into) {
    detail::require_size(dtype, bytes.size(), into.size());
    if (dtype == "F32") return detail::widen_all<float>(bytes, into);
    if (dtype == "BF16") return detail::widen_small<detail::brain_float>(bytes, into);
    if (dtype == "F16") return detail::widen_small<detail::half_float>(bytes, into);
    if (dtype == "F64") return detail::widen_all<double>(bytes, into);
    if (dtype == "I64") return detail::widen_all<std::int64_t>(bytes, into);
    if (dtype == "I32") return detail::widen_all<std::int32_t>(bytes, into);
    if (dtype == "I16") return detail::widen_all<std::int16_t>(bytes, into);
    if (dtype == "I8") return detail::widen_all<std::int8_t>(bytes, into);
    if (dtype == "U64") return detail::widen_all<std::uint64_t>(bytes, into);
    if (dtype == "U32") return detail::widen_all<std::uint32_t>(bytes, into);
    if (dtype == "U16") return detail::widen_all<std::uint16_t>(bytes, into);
    if (dtype == "U8" || dtype == "BOOL") return detail::widen_all<std::uint8_t>(bytes, into);
    throw detail::no_values(dtype);
}

SKEIN_INLINE void write_values(std::string_view dtype, std::span<const double> values,
                               mut_byte_span into) {
    detail::require_size(dtype, into.size(), values.size());
    if (dtype == "BF16") return detail::narrow_all<detail::brain_float>(values, into);
    if (dtype == "F16") return detail::narrow_all<detail::half_float>(values, into);
    if (dtype == "F64") {
        if (!values.empty()) std::memcpy(into.data(), values.data(), into.size());
        return;
    }
    if (dtype != "F32") throw detail::no_values(dtype);
    for (std::size_t i = 0; i < values.size(); ++i) {
        // float_cast_overflow is no error here: what is too large becomes infinite (IEC 60559).
        const auto value = static_cast<float>(values[i]);
        std::memcpy(into.data() + i * sizeof value, &value, sizeof value);
    }
}

SKEIN_INLINE byte_buffer cast_elements(byte_span from, std::string_view from_type,
                                       std::string_view to_type) {
    if (!is_float_type(from_type)) throw detail::no_values(from_type);
    if (!is_float_type(to_type)) throw detail::no_values(to_type);
    const auto from_size = dtype_size(from_type).value(), to_size = dtype_size(to_type).value();
    const auto elements = from.size() / from_size;
    byte_buffer out(elements * to_size);
    constexpr std::size_t most = 4096; // values at once: they stay in the cache
    std::vector<double> values(std::min(elements, most));
    for (std::size_t at = 0; at < elements; at += most) {
        const auto count = std::min(most, elements - at);
        const auto block = std::span(values).first(count);
        read_values(from_type, from.subspan(at * from_size, count * from_size), block);
        write_values(to_type, block, mut_byte_span(out).subspan(at * to_size, count * to_size));
    }
    return out;
}

} // namespace skein::train
