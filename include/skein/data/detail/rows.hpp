// SPDX-License-Identifier: Apache-2.0
#pragma once
// Rows without their type: where the values of each field are, and how a row travels.

#include <skein/core/error.hpp>
#include <skein/core/fields.hpp>
#include <skein/data/arena.hpp>
#include <skein/data/image.hpp>
#include <skein/wire/reader.hpp>
#include <skein/wire/writer.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

namespace skein::data {

/// Numbers that a column of a batch may have.
enum class number_type : std::uint8_t { u8, i8, i16, i32, i64, f32, f64, boolean };

namespace detail {

template <class T>
inline constexpr bool is_image = false;
template <class T, int C>
inline constexpr bool is_image<image<T, C>> = true;
template <class T>
inline constexpr bool is_span = false;
template <class T>
inline constexpr bool is_span<std::span<T>> = true;
template <class T>
inline constexpr bool is_std_array = false;
template <class T, std::size_t N>
inline constexpr bool is_std_array<std::array<T, N>> = true;

/// A row of several fields; else it is one field itself.
template <class T>
inline constexpr bool is_struct = std::is_class_v<T> && !is_image<T> && !is_span<T> &&
                                  !is_std_array<T> && !std::is_same_v<T, text>;

/// Values of one field of one row.
struct cell {
    number_type type = number_type::u8;
    std::uint8_t width = 1; ///< bytes of a number
    std::uint8_t rank = 0;
    std::array<std::int64_t, 3> dims{};
    const std::byte* data = nullptr;

    [[nodiscard]] std::size_t size() const noexcept {
        std::size_t bytes = width;
        for (int i = 0; i < rank; ++i) bytes *= static_cast<std::size_t>(dims[std::size_t(i)]);
        return bytes;
    }
    [[nodiscard]] bool is_like(const cell& other) const noexcept {
        return type == other.type && rank == other.rank && dims == other.dims;
    }
};
/// One row; refers to it and to its arena.
using cells = std::vector<cell>;

/// "float32[3, 224, 224]".
[[nodiscard]] std::string text_of(const cell& shape);

template <class T>
consteval number_type number_type_of() {
    if constexpr (std::is_same_v<T, bool>)
        return number_type::boolean;
    else if constexpr (std::is_enum_v<T>)
        return number_type_of<std::underlying_type_t<T>>();
    else if constexpr (std::is_same_v<T, float>)
        return number_type::f32;
    else if constexpr (std::is_same_v<T, double>)
        return number_type::f64;
    else if constexpr (sizeof(T) == 1)
        return std::is_signed_v<T> ? number_type::i8 : number_type::u8;
    else {
        static_assert(std::is_integral_v<T>, "skein: a column holds numbers");
        static_assert(std::is_signed_v<T>,
                      "skein: a column has no unsigned numbers but bytes, as tensors: "
                      "use std::int64_t");
        return sizeof(T) == 2   ? number_type::i16
               : sizeof(T) == 4 ? number_type::i32
                                : number_type::i64;
    }
}
template <class T>
constexpr cell number_cell() {
    return {.type = number_type_of<T>(), .width = sizeof(T)};
}

template <class T>
void describe_field(const T& field, cells& out) {
    if constexpr (is_image<T>) {
        auto made = number_cell<typename T::value_type>();
        made.rank = 3;
        if constexpr (T::is_planar)
            made.dims = {T::channels, field.height, field.width};
        else
            made.dims = {field.height, field.width, T::channels};
        made.data = reinterpret_cast<const std::byte*>(field.data);
        out.push_back(made);
    } else if constexpr (is_span<T>) {
        using number = std::remove_cv_t<typename T::element_type>;
        using value = std::conditional_t<std::is_same_v<number, std::byte>, std::uint8_t, number>;
        auto made = number_cell<value>();
        made.rank = 1;
        made.dims[0] = static_cast<std::int64_t>(field.size());
        made.data = reinterpret_cast<const std::byte*>(field.data());
        out.push_back(made);
    } else if constexpr (is_std_array<T>) {
        auto made = number_cell<typename T::value_type>();
        made.rank = 1;
        made.dims[0] = static_cast<std::int64_t>(field.size());
        made.data = reinterpret_cast<const std::byte*>(field.data());
        out.push_back(made);
    } else if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T>) {
        auto made = number_cell<T>();
        made.data = reinterpret_cast<const std::byte*>(&field);
        out.push_back(made);
    } else {
        static_assert(!sizeof(T),
                      "skein: the last row of a pipeline for training has fields that are "
                      "numbers, enums, std::array, data::array or data::image: "
                      "map text and bytes to one of these");
    }
}

/// The fields of a row, in order; they refer to it.
template <class Row>
void describe_row(const Row& row, cells& out) {
    out.clear();
    if constexpr (!is_struct<Row>)
        describe_field(row, out);
    else
        std::apply([&](const auto&... field) { (describe_field(field, out), ...); },
                   tie_fields(row));
}

/// Whether the bytes of a field are all there is to it.
template <class T>
inline constexpr bool is_numbers = std::is_arithmetic_v<T> || std::is_enum_v<T>;
template <class T, std::size_t N>
inline constexpr bool is_numbers<std::array<T, N>> = is_numbers<T>;

/// How a row travels: its numbers as they are, handles as their lengths and their values.
template <class T>
void write_field(wire::writer& out, const T& field) {
    if constexpr (is_image<T>) {
        out.fixed(field.height);
        out.fixed(field.width);
        out.raw(as_bytes(std::span<const typename T::value_type>(field.values())));
    } else if constexpr (is_span<T>) {
        out.varint(field.size());
        out.raw(std::as_bytes(field));
    } else if constexpr (std::is_same_v<T, text>) {
        out.varint(field.size());
        out.raw(as_bytes(field));
    } else {
        static_assert(is_numbers<T>,
                      "skein: rows left of on() travel: their fields are numbers, enums, "
                      "std::array of these, data::text, data::bytes, data::array or data::image");
        out.fixed(field);
    }
}
template <class Row>
void write_row(wire::writer& out, const Row& row) {
    if constexpr (!is_struct<Row>)
        write_field(out, row);
    else
        std::apply([&](const auto&... field) { (write_field(out, field), ...); }, tie_fields(row));
}

/// Bytes for the values of a field, copied into the current arena: what came is not aligned.
[[nodiscard]] const std::byte* read_values(wire::reader& from, std::uint64_t bytes);

template <class T>
[[nodiscard]] bool read_field(wire::reader& from, T& field) {
    if constexpr (is_image<T>) {
        if (!from.fixed(field.height) || !from.fixed(field.width)) return false;
        if (field.height < 0 || field.width < 0 || field.height > 1'000'000 ||
            field.width > 1'000'000)
            return from.fail(errc::malformed, "an image of a size that none has");
        const auto* const values = read_values(from, field.size() * sizeof(typename T::value_type));
        field.data = const_cast<typename T::value_type*>(
            reinterpret_cast<const typename T::value_type*>(values));
        return values != nullptr;
    } else if constexpr (is_span<T> || std::is_same_v<T, text>) {
        using number = std::conditional_t<is_span<T>, typename T::value_type, char>;
        std::uint64_t count = 0;
        if (!from.varint(count)) return false;
        if (count > from.remaining() / sizeof(number))
            return from.fail(errc::malformed, "a field that is longer than its message");
        const auto* const values = read_values(from, count * sizeof(number));
        field = T(reinterpret_cast<const number*>(values), count);
        return values != nullptr;
    } else if constexpr (std::is_same_v<T, bool>) {
        std::uint8_t value = 0;
        if (!from.fixed(value)) return false;
        field = value != 0;
        return true;
    } else {
        return from.fixed(field);
    }
}
template <class Row>
[[nodiscard]] bool read_row(wire::reader& from, Row& row) {
    if constexpr (!is_struct<Row>)
        return read_field(from, row);
    else
        return std::apply([&](auto&... field) { return (read_field(from, field) && ...); },
                          tie_fields(row));
}

} // namespace detail
} // namespace skein::data

#if SKEIN_HEADER_ONLY
#include <skein/data/detail/rows.ipp>
#endif
