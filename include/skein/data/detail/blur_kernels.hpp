// SPDX-License-Identifier: Apache-2.0
#pragma once
// Symmetric filters over rows and columns, reflected at the borders.

#include <skein/data/detail/vectors.hpp>

#include <cstddef>
#include <span>
#include <vector>

namespace skein::data::detail {

/// The middle tap of a kernel and those to its right: as torchvision computes it, in double.
[[nodiscard]] std::vector<double> gaussian_half(int taps, double sigma);

/// The half of the kernels one after the other, without taps under 1e-7 at its ends.
[[nodiscard]] std::vector<double> folded_half(int taps, std::span<const float> sigmas);

/// One plane, filtered by columns, then by rows.
struct filter_run {
    static constexpr std::ptrdiff_t band = 8; ///< rows that are made together

    float* to = nullptr;
    const float* from = nullptr;
    std::ptrdiff_t height = 0, width = 0, radius = 0; ///< both larger than the radius
    const float* half = nullptr;                      ///< radius + 1 taps
    float* columns = nullptr;                         ///< scratch: band (width + 2 radius)
    const float** rows = nullptr;                     ///< scratch: band + 2 radius
};
void filter_plane(const filter_run& run);
SKEIN_AVX2 void filter_plane_avx2(const filter_run& run);

} // namespace skein::data::detail

#if SKEIN_HEADER_ONLY
#include <skein/data/detail/blur_kernels.ipp>
#endif
