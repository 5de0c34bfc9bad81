// SPDX-License-Identifier: Apache-2.0
#pragma once
// Fields of rows whose size is known when they run: bytes, text, arrays and images.
//
// All are handles into an arena: trivially copyable, and dead when the arena is reset. A row is a
// plain aggregate of numbers, enums, std::array of numbers and handles.
//
//     struct sample { data::image<float, 3> pixels; std::int64_t label = 0; };
//     auto image = data::make_image<float, 3>(224, 224);     // in the current arena

#include <skein/data/arena.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>

namespace skein::data {

/// Bytes of a file or a message.
using bytes = std::span<const std::byte>;
/// Text, UTF-8 unless its source says otherwise.
using text = std::string_view;
/// Numbers, as many as the row says.
template <class T>
    requires std::is_arithmetic_v<T>
using array = std::span<const T>;

/// An image of C channels.
///   T = std::uint8_t  as decoders give it: [height, width, C], values 0 to 255
///   T = float         as models take it: [C, height, width]
template <class T, int C>
    requires(std::same_as<T, std::uint8_t> || std::same_as<T, float>)
struct image {
    using value_type = T;
    static constexpr int channels = C;
    static constexpr bool is_planar = std::same_as<T, float>;

    T* data = nullptr; ///< into an arena, without gaps
    std::int32_t height = 0, width = 0;

    /// Values: C * height * width.
    [[nodiscard]] std::size_t size() const noexcept {
        return static_cast<std::size_t>(C) * static_cast<std::size_t>(height) *
               static_cast<std::size_t>(width);
    }
    [[nodiscard]] std::span<T> values() const noexcept { return {data, size()}; }
};

/// An image in the current arena; its values are indeterminate.
template <class T, int C>
[[nodiscard]] image<T, C> make_image(std::int32_t height, std::int32_t width) {
    image<T, C> made{nullptr, height, width};
    made.data = arena::current().array<T>(made.size()).data();
    return made;
}

} // namespace skein::data
