// SPDX-License-Identifier: Apache-2.0
#pragma once
// Images that are drawn by number: stripes in noise, whose direction is the class.

#include <skein/data/draws.hpp>
#include <skein/torch/torch.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

namespace drawn {

// N samples, C channels, H height, W width

/// What the loss gets.
struct pictures {
    torch::Tensor images_NCHW, labels_N;
};

/// Samples first, first + 1, ...: what an image shows follows from its number and the seed alone, on
/// every rank and in every epoch.
class images {
public:
    images(std::uint64_t first, std::uint64_t count, std::int64_t side, std::int64_t classes,
           std::uint64_t seed)
        : first_(first), count_(count), side_(side), classes_(classes), seed_(seed) {}

    [[nodiscard]] std::uint64_t size() const noexcept { return count_; }
    [[nodiscard]] pictures batch(std::span<const std::uint64_t> ids) const {
        const auto samples = static_cast<std::int64_t>(ids.size());
        auto images_NCHW = torch::empty({samples, 3, side_, side_});
        auto labels_N = torch::empty({samples}, torch::kLong);
        const auto along_W = torch::arange(side_, torch::kFloat) * (25.0 / double(side_));
        for (std::int64_t n = 0; n < samples; ++n) {
            const auto number = first_ + ids[static_cast<std::size_t>(n)];
            const auto label = static_cast<std::int64_t>(number % std::uint64_t(classes_));
            auto image_CHW = images_NCHW[n];
            skein::data::draws random(seed_, 0, number, 0);
            random.fill_normal(
                {image_CHW.mutable_data_ptr<float>(), std::size_t(image_CHW.numel())});
            const double turned = 3.14159265 * double(label) / double(classes_);
            const auto wave_HW = along_W * std::cos(turned) +
                                 (along_W * std::sin(turned)).unsqueeze(1) +
                                 random.uniform(0, 6.28f);
            image_CHW.mul_(0.5).add_(wave_HW.cos());
            labels_N[n] = label;
        }
        return {images_NCHW, labels_N};
    }

private:
    std::uint64_t first_, count_;
    std::int64_t side_, classes_;
    std::uint64_t seed_;
};

} // namespace drawn
