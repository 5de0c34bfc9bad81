// SPDX-License-Identifier: Apache-2.0
#pragma once
// The words for raw bytes: views, owned buffers, and the way to and from text.
//
//     byte_buffer packet = to_buffer("hello");
//     byte_span head = byte_span(packet).first(4);

#include <skein/core/config.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace skein {

static_assert(
    std::endian::native == std::endian::little,
    "skein writes little-endian bytes with memcpy: big-endian machines are not supported");

/// Bytes of somebody else, to read.
using byte_span = std::span<const std::byte>;
/// Bytes of somebody else, to fill.
using mut_byte_span = std::span<std::byte>;
/// Bytes of one's own.
using byte_buffer = std::vector<std::byte>;

/// Views text as bytes; the view lives as long as the text.
[[nodiscard]] inline byte_span as_bytes(std::string_view text) noexcept {
    return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

/// Views the elements of a contiguous range of trivially copyable objects as bytes.
template <class T, std::size_t N>
    requires std::is_trivially_copyable_v<T>
[[nodiscard]] byte_span as_bytes(std::span<T, N> items) noexcept {
    return {reinterpret_cast<const std::byte*>(items.data()), items.size_bytes()};
}

/// Views bytes as text; the view lives as long as the bytes.
[[nodiscard]] inline std::string_view as_text(byte_span bytes) noexcept {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// Copies bytes into a string.
[[nodiscard]] inline std::string to_string(byte_span bytes) { return std::string(as_text(bytes)); }

/// Copies bytes (or text) into an owned buffer.
[[nodiscard]] inline byte_buffer to_buffer(byte_span bytes) { return {bytes.begin(), bytes.end()}; }
[[nodiscard]] inline byte_buffer to_buffer(std::string_view text) {
    return to_buffer(as_bytes(text));
}

/// Appends bytes to a buffer.
inline void append(byte_buffer& to, byte_span bytes) {
    to.insert(to.end(), bytes.begin(), bytes.end());
}

/// Lower-case hexadecimal text, two digits a byte.
[[nodiscard]] inline std::string to_hex(byte_span bytes) {
    static constexpr char digits[] = "0123456789abcdef";
    std::string text;
    text.reserve(bytes.size() * 2);
    for (const std::byte b : bytes) {
        text += digits[std::to_integer<unsigned>(b) >> 4];
        text += digits[std::to_integer<unsigned>(b) & 15];
    }
    return text;
}

/// Reads hexadecimal text into `into`; false if the length or a digit does not fit.
[[nodiscard]] inline bool from_hex(std::string_view text, mut_byte_span into) noexcept {
    if (text.size() != into.size() * 2) return false;
    const auto digit = [](char c) -> int {
        if (c >= '0' && c <= '9') return c - '0';
        if (c >= 'a' && c <= 'f') return c - 'a' + 10;
        if (c >= 'A' && c <= 'F') return c - 'A' + 10;
        return -1;
    };
    for (std::size_t i = 0; i < into.size(); ++i) {
        const int high = digit(text[2 * i]), low = digit(text[2 * i + 1]);
        if (high < 0 || low < 0) return false;
        into[i] = static_cast<std::byte>(high * 16 + low);
    }
    return true;
}

/// Loads a little-endian unsigned integer from sizeof(T) bytes.
template <class T>
    requires std::is_unsigned_v<T>
[[nodiscard]] T load_le(const std::byte* from) noexcept {
    T value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

/// Stores a little-endian unsigned integer into sizeof(T) bytes.
template <class T>
    requires std::is_unsigned_v<T>
void store_le(std::byte* to, T value) noexcept {
    std::memcpy(to, &value, sizeof value);
}

} // namespace skein
