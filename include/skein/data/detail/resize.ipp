// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/data/resize.hpp>.

#include <skein/core/error.hpp>
#include <skein/data/detail/exact_math.hpp>
#include <skein/data/detail/resize_kernels.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>

#include <fmt/format.h>

SKEIN_EXACT_BEGIN
namespace skein::data::detail {

/// Weights of a triangle as wide as one result, at least as one source value: precompute_coeffs and
/// normalize_coeffs_8bpc of Pillow.
SKEIN_INLINE resize_weights weights_of(std::int32_t source, std::int32_t results) {
    const double scale = static_cast<double>(source) / results, support = std::max(scale, 1.0);
    resize_weights made;
    made.most = static_cast<std::int32_t>(std::ceil(support)) * 2 + 1;
    const auto count = static_cast<std::size_t>(results),
               most = static_cast<std::size_t>(made.most);
    auto& memory = arena::current();
    made.first = memory.array<std::int32_t>(count);
    made.taps = memory.array<std::int32_t>(count);
    made.weight = memory.array<std::int32_t>(count * most);
    const auto exact = memory.array<double>(most);
    for (std::size_t x = 0; x < count; ++x) {
        const double center = (static_cast<double>(x) + 0.5) * scale;
        const auto first = std::max(static_cast<std::int32_t>(center - support + 0.5), 0);
        const auto last = std::min(static_cast<std::int32_t>(center + support + 0.5), source);
        const auto taps = static_cast<std::size_t>(last - first);
        double sum = 0;
        for (std::size_t i = 0; i < taps; ++i) {
            const double at = static_cast<double>(static_cast<std::int32_t>(i) + first);
            const double far = std::abs((at - center + 0.5) * (1.0 / support));
            exact[i] = far < 1.0 ? 1.0 - far : 0.0;
            sum = sum + exact[i];
        }
        made.first[x] = first;
        made.taps[x] = static_cast<std::int32_t>(taps);
        for (std::size_t i = 0; i < taps; ++i)
            made.weight[x * most + i] = static_cast<std::int32_t>(
                0.5 + (sum != 0 ? exact[i] / sum : exact[i]) * (1 << weight_bits));
    }
    return made;
}

/// Every row of `from` at the width of `to`.
SKEIN_INLINE void resize_width(byte_plane to, byte_plane from, int channels) {
    const auto weights = weights_of(from.width, to.width);
    const auto run = has_avx2() ? resize_across_avx2 : resize_across;
    const auto width = static_cast<std::size_t>(from.width);
    resize_row row{to.data, from.data, arena::current().array<std::int32_t>(4 * width).data(),
                   width, channels};
    std::ranges::fill(std::span(row.wide, 4 * width), 0);
    for (std::int32_t y = 0; y < from.height; ++y) {
        run(row, weights);
        row.to += to.step;
        row.from += from.step;
    }
}

/// Every column of `from` at the height of `to`.
SKEIN_INLINE void resize_height(byte_plane to, byte_plane from, int channels) {
    const auto weights = weights_of(from.height, to.height);
    const auto run = has_avx2() ? resize_down_avx2 : resize_down;
    for (std::int32_t y = 0; y < to.height; ++y) {
        const auto i = static_cast<std::size_t>(y);
        run({to.data + y * to.step, from.data + weights.first[i] * from.step, from.step,
             weights.weight.data() + y * weights.most, weights.taps[i],
             static_cast<std::size_t>(to.width) * static_cast<std::size_t>(channels)});
    }
}

SKEIN_INLINE void resize_bytes(byte_plane to, byte_plane from, int channels) {
    if (from.height < 1 || from.width < 1 || to.height < 1 || to.width < 1)
        throw error(errc::invalid_argument,
                    fmt::format("an image of {}x{} cannot be resized to {}x{}", from.height,
                                from.width, to.height, to.width));
    const bool across = to.width != from.width, down = to.height != from.height;
    if (across && !down) return resize_width(to, from, channels);
    if (across) {
        const auto step = to.width * std::ptrdiff_t{channels};
        const auto size = static_cast<std::size_t>(step * from.height);
        const byte_plane between{arena::current().array<std::uint8_t>(size).data(), from.height,
                                 to.width, step};
        resize_width(between, from, channels);
        from = between;
    }
    if (down) return resize_height(to, from, channels);
    for (std::int32_t y = 0; y < to.height; ++y)
        std::memcpy(to.data + y * to.step, from.data + y * from.step,
                    static_cast<std::size_t>(to.width) * static_cast<std::size_t>(channels));
}

SKEIN_INLINE std::array<std::int32_t, 2> short_side_extent(std::int32_t height, std::int32_t width,
                                                           std::int32_t side) {
    if (height < 1 || width < 1 || side < 1)
        throw error(errc::invalid_argument,
                    fmt::format("the short side of an image of {}x{} cannot become {}", height,
                                width, side));
    const std::int64_t shorter = std::min(height, width), longer = std::max(height, width);
    const auto other = std::int64_t{side} * longer / shorter;
    if (other > INT32_MAX)
        throw error(errc::too_large,
                    fmt::format("an image of {}x{} with a short side of {}", height, width, side));
    const auto wide = static_cast<std::int32_t>(other);
    return width <= height ? std::array{wide, side} : std::array{side, wide};
}

SKEIN_INLINE box random_box(std::int32_t height, std::int32_t width, draws& random,
                            std::array<float, 2> scale, std::array<float, 2> ratio) {
    if (!(scale[0] > 0 && scale[1] >= scale[0] && ratio[0] > 0 && ratio[1] >= ratio[0]) ||
        height < 1 || width < 1)
        throw error(
            errc::invalid_argument,
            fmt::format("a random crop of scale [{}, {}] and ratio [{}, {}] out of an image "
                        "of {}x{}",
                        scale[0], scale[1], ratio[0], ratio[1], height, width));
    const double h = height, w = width, narrow = ratio[0], broad = ratio[1];
    const double low = logarithm_of(narrow), high = logarithm_of(broad);
    for (int tries = 0; tries < 10; ++tries) {
        const double share = random.unit(), turn = random.unit();
        const double area =
            h * w * (double{scale[0]} + (double{scale[1]} - double{scale[0]}) * share);
        const double aspect = exponent_of(low + (high - low) * turn);
        const double wide = std::nearbyint(std::sqrt(area * aspect));
        const double tall = std::nearbyint(std::sqrt(area / aspect));
        if (!(wide >= 1 && wide <= w && tall >= 1 && tall <= h)) continue;
        box made{0, 0, static_cast<std::int32_t>(tall), static_cast<std::int32_t>(wide)};
        made.top = static_cast<std::int32_t>(
            random.integer(static_cast<std::uint64_t>(height - made.height) + 1));
        made.left = static_cast<std::int32_t>(
            random.integer(static_cast<std::uint64_t>(width - made.width) + 1));
        return made;
    }
    // None fitted: the largest part in the middle that has a ratio in the range.
    box made{0, 0, height, width};
    if (w / h < narrow) made.height = static_cast<std::int32_t>(std::nearbyint(w / narrow));
    if (w / h > broad) made.width = static_cast<std::int32_t>(std::nearbyint(h * broad));
    made.height = std::clamp(made.height, 1, height);
    made.width = std::clamp(made.width, 1, width);
    made.top = (height - made.height) / 2;
    made.left = (width - made.width) / 2;
    return made;
}

} // namespace skein::data::detail
SKEIN_EXACT_END
