// SPDX-License-Identifier: Apache-2.0
#pragma once
// From decoded bytes to what models take, and crops and flips, as torchvision has them.
//
//     auto x = data::to_float(pixels);                                   // ToTensor
//     auto y = data::to_float_normalized(pixels, mean, deviation);       // and Normalize, in one pass
//     auto z = data::center_crop(data::flip_horizontal(y), 224, 224);
//
//   source: torchvision/transforms/functional.py: to_tensor, normalize, hflip, crop, center_crop

#include <skein/data/image.hpp>

#include <array>
#include <cstddef>
#include <cstdint>

namespace skein::data {

namespace detail {
/// Rows of equal length, `step` bytes apart.
template <class T>
struct rows_of {
    T* data = nullptr;
    std::size_t step = 0;
};
void to_planes(float* to, image<std::uint8_t, 1> from, int channels);
void to_planes_normalized(float* to, image<std::uint8_t, 1> from, int channels, const float* mean,
                          const float* deviation);
void normalize_planes(float* to, const float* from, std::size_t plane, int channels,
                      const float* mean, const float* deviation);
void flip_rows(rows_of<std::byte> to, rows_of<const std::byte> from, std::size_t rows,
               std::size_t width, std::size_t pixel_bytes);
void copy_rows(rows_of<std::byte> to, rows_of<const std::byte> from, std::size_t rows,
               std::size_t row_bytes);

/// A part of an image of height x width.
struct box {
    std::int32_t top = 0, left = 0, height = 0, width = 0;
};
/// Throws invalid_argument unless the box lies in the image.
void check_crop(const box& part, std::int32_t height, std::int32_t width);
/// Where center_crop puts what it copies.
struct center_boxes {
    box from;                       ///< of the image
    std::int32_t top = 0, left = 0; ///< in the result; around it are zeros
};
[[nodiscard]] center_boxes center_of(std::int32_t height, std::int32_t width,
                                     std::int32_t to_height, std::int32_t to_width);

/// Copies the part of an image to (top, left) of another one.
template <class T, int C>
void copy_part(image<T, C> to, std::int32_t top, std::int32_t left, image<T, C> from,
               const box& part) {
    const bool planar = image<T, C>::is_planar;
    const std::size_t pixel = planar ? 1 : C;
    const auto step = [&](image<T, C> of) { return static_cast<std::size_t>(of.width) * pixel; };
    const auto at = [&](image<T, C> of, std::int32_t y, std::int32_t x) {
        return static_cast<std::size_t>(y) * step(of) + static_cast<std::size_t>(x) * pixel;
    };
    for (std::size_t plane = 0; plane < (planar ? C : 1); ++plane)
        copy_rows(
            {reinterpret_cast<std::byte*>(to.data + plane * to.size() / C + at(to, top, left)),
             step(to) * sizeof(T)},
            {reinterpret_cast<const std::byte*>(from.data + plane * from.size() / C +
                                                at(from, part.top, part.left)),
             step(from) * sizeof(T)},
            static_cast<std::size_t>(part.height),
            static_cast<std::size_t>(part.width) * pixel * sizeof(T));
}
} // namespace detail

/// A number for every channel of an image.
template <int C>
using per_channel = std::array<float, static_cast<std::size_t>(C)>;

/// ToTensor: values over 255, [height, width, C] to [C, height, width].
template <int C>
[[nodiscard]] image<float, C> to_float(image<std::uint8_t, C> from) {
    auto made = make_image<float, C>(from.height, from.width);
    detail::to_planes(made.data, {from.data, from.height, from.width}, C);
    return made;
}

/// to_float and normalize, the same bits in one pass.
///   errors  invalid_argument: a deviation of 0
template <int C>
[[nodiscard]] image<float, C> to_float_normalized(image<std::uint8_t, C> from,
                                                  const per_channel<C>& mean,
                                                  const per_channel<C>& deviation) {
    auto made = make_image<float, C>(from.height, from.width);
    detail::to_planes_normalized(made.data, {from.data, from.height, from.width}, C, mean.data(),
                                 deviation.data());
    return made;
}

/// Normalize: (x - mean) / deviation, of each channel.
///   errors  invalid_argument: a deviation of 0
template <int C>
[[nodiscard]] image<float, C> normalize(image<float, C> from, const per_channel<C>& mean,
                                        const per_channel<C>& deviation) {
    auto made = make_image<float, C>(from.height, from.width);
    detail::normalize_planes(made.data, from.data, from.size() / C, C, mean.data(),
                             deviation.data());
    return made;
}

/// Left and right changed over.
template <class T, int C>
[[nodiscard]] image<T, C> flip_horizontal(image<T, C> from) {
    auto made = make_image<T, C>(from.height, from.width);
    const auto width = static_cast<std::size_t>(from.width);
    const std::size_t lanes = image<T, C>::is_planar ? C : 1, pixel = C / lanes * sizeof(T);
    detail::flip_rows({reinterpret_cast<std::byte*>(made.data), width * pixel},
                      {reinterpret_cast<const std::byte*>(from.data), width * pixel},
                      static_cast<std::size_t>(from.height) * lanes, width, pixel);
    return made;
}

/// The part of height x width at (top, left).
///   errors  invalid_argument: it does not lie in the image
template <class T, int C>
[[nodiscard]] image<T, C> crop(image<T, C> from, std::int32_t top, std::int32_t left,
                               std::int32_t height, std::int32_t width) {
    detail::check_crop({top, left, height, width}, from.height, from.width);
    auto made = make_image<T, C>(height, width);
    detail::copy_part(made, 0, 0, from, {top, left, height, width});
    return made;
}

/// The middle of height x width; an image that is smaller is surrounded with zeros.
template <class T, int C>
[[nodiscard]] image<T, C> center_crop(image<T, C> from, std::int32_t height, std::int32_t width) {
    const auto place = detail::center_of(from.height, from.width, height, width);
    auto made = make_image<T, C>(height, width);
    if (place.from.height != height || place.from.width != width)
        for (auto& each : made.values()) each = 0;
    detail::copy_part(made, place.top, place.left, from, place.from);
    return made;
}

} // namespace skein::data

#if SKEIN_HEADER_ONLY
#include <skein/data/detail/pixels.ipp>
#endif
