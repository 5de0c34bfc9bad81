// SPDX-License-Identifier: Apache-2.0
#pragma once
// Gaussian blurs as operators of a pipeline: neighbours are folded into one.
//
//     auto made = data::range(n) | data::map<&draw>()
//               | data::repeat<10>(data::blur<&sample::pixels>({.taps = 11, .least = 0.1f, .most = 2.0f}));
//
// Each blur draws its sigma for each row. Ten of them are one filter whose taps are the ten
// kernels convolved: within 2e-6 of one after the other, and about a quarter of the work.
// data::apart() keeps an operator from being folded: to compare, or to audit.

#include <skein/data/blur.hpp>
#include <skein/data/pipeline.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace skein::data {

/// A blur of torchvision's kind: an odd number of taps, sigma uniform in [least, most).
struct blur_sigma {
    int taps = 11;
    float least = 0.1f, most = 2.0f;
};

/// Blurs the image `Field` of a row, Count times.
template <auto Field, std::size_t Count = 1>
struct blur_operator {
    std::array<float, Count> least{}, most{};
    std::array<std::int32_t, Count> taps{};

    /// Folded blurs draw as if each stood for itself.
    static constexpr std::size_t width = Count;

    template <class Row>
    [[nodiscard]] Row apply(const detail::row_key& key, std::uint64_t number, Row row) const {
        std::array<float, Count> sigmas{};
        for (std::size_t i = 0; i < Count; ++i) {
            draws random(key.seed, key.epoch, key.sample, number + i);
            sigmas[i] = random.uniform(least[i], most[i]);
        }
        if constexpr (Count > 1) {
            bool is_alike = true;
            for (const auto each : taps) is_alike = is_alike && each == taps[0];
            if (is_alike) {
                row.*Field = gaussian_blur_folded(row.*Field, sigmas, taps[0]);
                return row;
            }
        }
        for (std::size_t i = 0; i < Count; ++i)
            row.*Field = gaussian_blur(row.*Field, taps[i], sigmas[i]);
        return row;
    }
    [[nodiscard]] std::string describe() const {
        std::string line;
        for (std::size_t i = 0; i < Count; ++i)
            line += std::string(i == 0 ? "" : " | ") + "blur(" + std::to_string(taps[i]) + ", " +
                    detail::number_text(least[i]) + ", " + detail::number_text(most[i]) + ")";
        return line;
    }
};

/// A blur of an image that is a field of the rows: blur<&sample::pixels>().
///   errors  at the first row: invalid_argument (an even number of taps, a sigma of 0 or less, an
///           image that is smaller than half the taps)
template <auto Field>
[[nodiscard]] constexpr blur_operator<Field> blur(blur_sigma how = {}) {
    return {{how.least}, {how.most}, {how.taps}};
}

/// Two blurs of the same image in a row are one.
template <auto Field, std::size_t A, std::size_t B>
[[nodiscard]] constexpr blur_operator<Field, A + B> fuse(const blur_operator<Field, A>& first,
                                                         const blur_operator<Field, B>& second) {
    blur_operator<Field, A + B> both;
    for (std::size_t i = 0; i < A; ++i) {
        both.taps[i] = first.taps[i];
        both.least[i] = first.least[i];
        both.most[i] = first.most[i];
    }
    for (std::size_t i = 0; i < B; ++i) {
        both.taps[A + i] = second.taps[i];
        both.least[A + i] = second.least[i];
        both.most[A + i] = second.most[i];
    }
    return both;
}

} // namespace skein::data
