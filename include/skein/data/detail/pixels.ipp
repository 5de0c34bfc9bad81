// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/data/pixels.hpp>.

#include <skein/core/error.hpp>
#include <skein/data/detail/self_test.hpp>
#include <skein/data/detail/vectors.hpp>

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

SKEIN_EXACT_BEGIN
namespace skein::data::detail {

/// What each of 256 values becomes, for every channel: a division each, made once.
struct value_tables {
    std::array<std::array<float, 256>, 4> of;
};

SKEIN_ALWAYS_INLINE void spread(float* to, const std::uint8_t* from, std::size_t pixels,
                                std::size_t channels, const value_tables& tables) {
    for (std::size_t i = 0; i < pixels; ++i)
        for (std::size_t c = 0; c < channels; ++c)
            to[c * pixels + i] = tables.of[c][from[i * channels + c]];
}

SKEIN_INLINE void spread_planes(float* to, image<std::uint8_t, 1> from, int channels,
                                const value_tables& tables) {
    switch (channels) {
    case 1: return spread(to, from.data, from.size(), 1, tables);
    case 3: return spread(to, from.data, from.size(), 3, tables);
    default: return spread(to, from.data, from.size(), static_cast<std::size_t>(channels), tables);
    }
}

SKEIN_INLINE void check_channels(int channels) {
    if (channels < 1 || channels > 4)
        throw error(errc::invalid_argument,
                    fmt::format("an image of bytes has 1 to 4 channels, not {}", channels));
}

SKEIN_INLINE void check_deviation(int channels, const float* deviation) {
    for (int c = 0; c < channels; ++c)
        if (deviation[c] == 0)
            throw error(errc::invalid_argument,
                        fmt::format("the deviation of channel {} is 0: nothing to divide by", c));
}

SKEIN_INLINE void to_planes(float* to, image<std::uint8_t, 1> from, int channels) {
    check_channels(channels);
    static const value_tables tables = [] {
        value_tables made;
        for (auto& table : made.of)
            for (std::size_t i = 0; i < 256; ++i) table[i] = static_cast<float>(i) / 255.0f;
        return made;
    }();
    spread_planes(to, from, channels, tables);
}

SKEIN_INLINE void to_planes_normalized(float* to, image<std::uint8_t, 1> from, int channels,
                                       const float* mean, const float* deviation) {
    check_channels(channels);
    check_deviation(channels, deviation);
    require_exact_kernels();
    value_tables tables;
    for (std::size_t c = 0; c < static_cast<std::size_t>(channels); ++c)
        for (std::size_t i = 0; i < 256; ++i)
            tables.of[c][i] = (static_cast<float>(i) / 255.0f - mean[c]) / deviation[c];
    spread_planes(to, from, channels, tables);
}

SKEIN_INLINE void normalize_planes(float* to, const float* from, std::size_t plane, int channels,
                                   const float* mean, const float* deviation) {
    check_deviation(channels, deviation);
    require_exact_kernels();
    for (int c = 0; c < channels; ++c) {
        std::size_t i = 0;
        for (f32x8 values; i + 8 <= plane; i += 8) {
            load(values, from + i);
            values = (values - mean[c]) / deviation[c];
            store(to + i, values);
        }
        for (; i < plane; ++i) to[i] = (from[i] - mean[c]) / deviation[c];
        to += plane;
        from += plane;
    }
}

template <std::size_t Pixel>
SKEIN_ALWAYS_INLINE void flip_row(std::byte* to, const std::byte* from, std::size_t width) {
    for (std::size_t x = 0; x < width; ++x)
        std::memcpy(to + x * Pixel, from + (width - 1 - x) * Pixel, Pixel);
}

SKEIN_INLINE void flip_rows(rows_of<std::byte> to, rows_of<const std::byte> from, std::size_t rows,
                            std::size_t width, std::size_t pixel_bytes) {
    for (std::size_t y = 0; y < rows; ++y) {
        auto* const row = to.data + y * to.step;
        const auto* const source = from.data + y * from.step;
        switch (pixel_bytes) {
        case 1: flip_row<1>(row, source, width); break;
        case 3: flip_row<3>(row, source, width); break;
        case 4: flip_row<4>(row, source, width); break;
        default:
            for (std::size_t x = 0; x < width; ++x)
                std::memcpy(row + x * pixel_bytes, source + (width - 1 - x) * pixel_bytes,
                            pixel_bytes);
        }
    }
}

SKEIN_INLINE void copy_rows(rows_of<std::byte> to, rows_of<const std::byte> from, std::size_t rows,
                            std::size_t row_bytes) {
    if (row_bytes == 0) return;
    for (std::size_t y = 0; y < rows; ++y)
        std::memcpy(to.data + y * to.step, from.data + y * from.step, row_bytes);
}

SKEIN_INLINE void check_crop(const box& part, std::int32_t height, std::int32_t width) {
    const auto within = [](std::int64_t first, std::int64_t count, std::int64_t size) {
        return first >= 0 && count >= 0 && first + count <= size;
    };
    if (!within(part.top, part.height, height) || !within(part.left, part.width, width))
        throw error(errc::invalid_argument,
                    fmt::format("a crop of {}x{} at ({}, {}) does not lie in an image of {}x{}",
                                part.height, part.width, part.top, part.left, height, width));
}

SKEIN_INLINE center_boxes center_of(std::int32_t height, std::int32_t width, std::int32_t to_height,
                                    std::int32_t to_width) {
    if (to_height < 0 || to_width < 0)
        throw error(errc::invalid_argument, fmt::format("a crop of {}x{}", to_height, to_width));
    center_boxes made;
    const auto place = [](std::int32_t size, std::int32_t wanted, std::int32_t& first,
                          std::int32_t& count, std::int32_t& at) {
        count = std::min(size, wanted);
        at = (wanted - count) / 2;
        // Half of an odd difference is rounded to an even number, as Python does.
        const auto over = size - count;
        first = over / 2 + (over % 4 == 3 ? 1 : 0);
    };
    place(height, to_height, made.from.top, made.from.height, made.top);
    place(width, to_width, made.from.left, made.from.width, made.left);
    return made;
}

} // namespace skein::data::detail
SKEIN_EXACT_END
