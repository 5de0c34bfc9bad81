// SPDX-License-Identifier: Apache-2.0
#pragma once
// What collectives work on: elements of a few types in memory of the caller, and how they are
// reduced.

#include <skein/core/config.hpp>

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

namespace skein::dist {

/// Element types of collectives. u8 is for opaque bytes: it can be copied but not reduced.
enum class dtype : std::uint8_t { f32 = 0, bf16 = 1, f64 = 2, i64 = 3, u8 = 4, f16 = 5 };

/// Two-byte floating point: sums of it are added in float32 and rounded once.
[[nodiscard]] constexpr bool is_half(dtype type) noexcept {
    return type == dtype::bf16 || type == dtype::f16;
}

/// mean is the sum divided by the world size (integers: truncated towards zero).
enum class reduce_op : std::uint8_t { sum = 0, mean = 1, max = 2, min = 3 };

/// Bytes per element.
[[nodiscard]] constexpr std::size_t size_of(dtype type) noexcept {
    switch (type) {
    case dtype::f32: return 4;
    case dtype::bf16: return 2;
    case dtype::f64: return 8;
    case dtype::i64: return 8;
    case dtype::u8: return 1;
    case dtype::f16: return 2;
    }
    return 0;
}

[[nodiscard]] constexpr std::string_view to_string(dtype type) noexcept {
    switch (type) {
    case dtype::f32: return "f32";
    case dtype::bf16: return "bf16";
    case dtype::f64: return "f64";
    case dtype::i64: return "i64";
    case dtype::u8: return "u8";
    case dtype::f16: return "f16";
    }
    return "?";
}

[[nodiscard]] constexpr std::string_view to_string(reduce_op op) noexcept {
    switch (op) {
    case reduce_op::sum: return "sum";
    case reduce_op::mean: return "mean";
    case reduce_op::max: return "max";
    case reduce_op::min: return "min";
    }
    return "?";
}

/// A bfloat16 as its 16 bits: the upper half of a float32.
struct bf16_t {
    std::uint16_t bits = 0;
    friend constexpr bool operator==(bf16_t, bf16_t) = default;
};

/// float32 to bfloat16, to nearest even; NaN stays NaN (quiet).
[[nodiscard]] [[gnu::always_inline]] inline bf16_t to_bf16(float value) noexcept {
    const auto u = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    const std::uint32_t quiet = (u >> 16) | 0x40u;
    const bool is_nan = static_cast<std::int32_t>(u & 0x7fffffffu) > 0x7f800000;
    return bf16_t{static_cast<std::uint16_t>(is_nan ? quiet : rounded)};
}

[[nodiscard]] [[gnu::always_inline]] inline float to_float(bf16_t value) noexcept {
    return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}

/// An IEEE half (binary16) as its 16 bits.
struct f16_t {
    std::uint16_t bits = 0;
    friend constexpr bool operator==(f16_t, f16_t) = default;
};

/// float32 to half, to nearest even, with subnormals; NaN stays NaN (quiet, with what fits of its
/// payload). The same bits as the processor's instruction.
[[nodiscard]] constexpr f16_t to_f16(float value) noexcept {
    const auto u = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t sign = u >> 16 & 0x8000u, a = u & 0x7fffffffu;
    std::uint32_t r = 0;
    if (a > 0x7f800000u) {
        r = 0x7e00u | (a >> 13 & 0x3ffu);
    } else if (a >= 0x477ff000u) { // from 65520 on: infinity
        r = 0x7c00u;
    } else if (a >= 0x38800000u) { // from 2^-14 on: the exponent's bias changes from 127 to 15
        r = (a - 0x38000000u + 0xfffu + (a >> 13 & 1u)) >> 13;
    } else if (a > 0x33000000u) { // above 2^-25: a subnormal in steps of 2^-24
        const std::uint32_t m = (a & 0x7fffffu) | 0x800000u, shift = 126 - (a >> 23);
        const std::uint32_t half = 1u << (shift - 1);
        r = (m + half - 1 + (m >> shift & 1u)) >> shift;
    }
    return f16_t{static_cast<std::uint16_t>(sign | r)};
}

/// Exact; NaN becomes quiet.
[[nodiscard]] constexpr float to_float(f16_t value) noexcept {
    const std::uint32_t sign = std::uint32_t{value.bits} << 16 & 0x80000000u;
    const std::uint32_t m = value.bits & 0x3ffu, e = value.bits >> 10 & 0x1fu;
    if (e == 0) { // a whole number of 2^-24
        const float small = static_cast<float>(m) * 0x1p-24f;
        return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(small));
    }
    const std::uint32_t special = m == 0 ? 0x7f800000u : 0x7fc00000u | m << 13;
    return std::bit_cast<float>(sign | (e == 31 ? special : (e + 112) << 23 | m << 13));
}

/// Where memory is.
struct device {
    enum class kind : std::uint8_t { cpu, cuda };

    kind type = kind::cpu;
    std::uint8_t index = 0; ///< which one of its kind

    [[nodiscard]] static constexpr device cpu() noexcept { return {}; }
    [[nodiscard]] static constexpr device cuda(std::uint8_t index) noexcept {
        return {kind::cuda, index};
    }
    [[nodiscard]] constexpr bool is_cpu() const noexcept { return type == kind::cpu; }
    friend constexpr bool operator==(device, device) = default;
};

/// "cpu", "cuda:0".
[[nodiscard]] inline std::string to_string(device where) {
    return where.is_cpu() ? "cpu" : "cuda:" + std::to_string(where.index);
}

/// Contiguous elements in memory of the caller. Must stay alive until the collective has ended.
struct buffer_view {
    void* data = nullptr;
    std::size_t count = 0;
    dtype type = dtype::f32;
    device where = device::cpu();

    [[nodiscard]] std::size_t bytes() const noexcept { return count * size_of(type); }
    [[nodiscard]] std::byte* begin() const noexcept { return static_cast<std::byte*>(data); }
    /// Elements [first, first + n).
    [[nodiscard]] buffer_view slice(std::size_t first, std::size_t n) const noexcept {
        return buffer_view{begin() + first * size_of(type), n, type, where};
    }
};

/// Whether T is a type that collectives reduce; see dtype.
template <class T>
inline constexpr bool is_element = false;
template <>
inline constexpr bool is_element<float> = true;
template <>
inline constexpr bool is_element<bf16_t> = true;
template <>
inline constexpr bool is_element<f16_t> = true;
template <>
inline constexpr bool is_element<double> = true;
template <>
inline constexpr bool is_element<std::int64_t> = true;
template <>
inline constexpr bool is_element<std::byte> = true;
template <>
inline constexpr bool is_element<std::uint8_t> = true;

/// The dtype of a C++ element type.
template <class T>
    requires is_element<T>
[[nodiscard]] constexpr dtype dtype_of() noexcept {
    if constexpr (std::same_as<T, float>)
        return dtype::f32;
    else if constexpr (std::same_as<T, bf16_t>)
        return dtype::bf16;
    else if constexpr (std::same_as<T, f16_t>)
        return dtype::f16;
    else if constexpr (std::same_as<T, double>)
        return dtype::f64;
    else if constexpr (std::same_as<T, std::int64_t>)
        return dtype::i64;
    else
        return dtype::u8;
}

/// A view of a span of elements. Collectives do not write to buffers documented as input.
template <class T>
    requires is_element<std::remove_const_t<T>>
[[nodiscard]] buffer_view view_of(std::span<T> elements) noexcept {
    using plain = std::remove_const_t<T>;
    return buffer_view{const_cast<plain*>(elements.data()), elements.size(), dtype_of<plain>(),
                       device::cpu()};
}

} // namespace skein::dist
