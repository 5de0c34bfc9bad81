// SPDX-License-Identifier: Apache-2.0
#pragma once
// The workload of the data layer's benchmarks, that of examples/240_hetero_vit: images of normal
// draws, 3 x 224 x 224, blurred ten times with 11 taps and sigmas uniform in [0.1, 2), batches of 64.

#include <skein/data/blur_operator.hpp>
#include <skein/data/pipeline.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace bench {

namespace data = skein::data;

inline constexpr std::int32_t image_side = 224;
inline constexpr std::size_t blurs = 10, images_per_batch = 64;
inline constexpr data::blur_sigma sigmas{.taps = 11, .least = 0.1f, .most = 2.0f};

struct blurred_image {
    data::image<float, 3> pixels;
    std::int64_t label = 0, id = 0;
};

struct numbers {
    std::uint64_t count = 0;

    std::uint64_t size() const { return count; }
    blurred_image read(std::uint64_t i) const {
        const auto number = static_cast<std::int64_t>(i);
        return {data::make_image<float, 3>(image_side, image_side), number % 1000, number};
    }
    std::string describe() const { return "numbers(" + std::to_string(count) + ")"; }
};

inline blurred_image draw(blurred_image s, data::draws& random) {
    random.fill_normal(s.pixels.values());
    return s;
}

/// Calls f(pipeline); as written: one blur after the other, else all as one.
template <class F>
auto with_pipeline(std::uint64_t images, const data::helpers& helpers, bool as_written, F f) {
    constexpr auto blur = data::blur<&blurred_image::pixels>(sigmas);
    auto drawn = numbers{images} | data::map<&draw>();
    const data::batch size(images_per_batch);
    if (as_written)
        return f(std::move(drawn) | data::repeat<blurs>(data::apart(blur)) | data::on(helpers) |
                 data::shuffle() | size);
    return f(std::move(drawn) | data::repeat<blurs>(blur) | data::on(helpers) | data::shuffle() |
             size);
}

/// The kernels alone, with the draws that a row of the pipeline makes.
inline void make_alone(std::uint64_t sample, bool as_written) {
    auto pixels = data::make_image<float, 3>(image_side, image_side);
    data::draws(0, 0, sample, 0).fill_normal(pixels.values());
    std::array<float, blurs> drawn{};
    for (std::size_t i = 0; i < blurs; ++i)
        drawn[i] = data::draws(0, 0, sample, 1 + i).uniform(sigmas.least, sigmas.most);
    if (as_written)
        for (const float sigma : drawn) pixels = data::gaussian_blur(pixels, sigmas.taps, sigma);
    else
        pixels = data::gaussian_blur_folded(pixels, drawn, sigmas.taps);
    asm volatile("" : : "r"(pixels.data) : "memory");
}

} // namespace bench
