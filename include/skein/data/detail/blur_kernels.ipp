// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/data/detail/blur_kernels.hpp>.

#include <skein/data/detail/exact_math.hpp>

#include <algorithm>
#include <utility>

SKEIN_EXACT_BEGIN
namespace skein::data::detail {

SKEIN_INLINE std::vector<double> gaussian_half(int taps, double sigma) {
    std::vector<double> half(static_cast<std::size_t>(taps / 2) + 1);
    double sum = 0;
    for (std::size_t i = half.size(); i-- > 0;) {
        const double x = static_cast<double>(i) / sigma;
        half[i] = exponent_of(-0.5 * x * x);
        sum = sum + (i == 0 ? half[i] : 2 * half[i]);
    }
    for (auto& each : half) each = each / sum;
    return half;
}

SKEIN_INLINE std::vector<double> folded_half(int taps, std::span<const float> sigmas) {
    std::vector<double> whole{1.0}; // symmetric: its middle is at size / 2
    for (const float sigma : sigmas) {
        const auto half = gaussian_half(taps, static_cast<double>(sigma));
        const auto radius = half.size() - 1;
        std::vector<double> next(whole.size() + 2 * radius);
        for (std::size_t at = 0; at < whole.size(); ++at)
            for (std::size_t j = 0; j <= 2 * radius; ++j)
                next[at + j] =
                    next[at + j] + whole[at] * half[j < radius ? radius - j : j - radius];
        whole = std::move(next);
    }
    std::vector<double> half(whole.begin() + static_cast<std::ptrdiff_t>(whole.size() / 2),
                             whole.end());
    while (half.size() > 1 && half.back() < 1e-7) half.pop_back();
    return half;
}

SKEIN_ALWAYS_INLINE std::ptrdiff_t reflected(std::ptrdiff_t at, std::ptrdiff_t size) {
    if (at < 0) return -at;
    return at < size ? at : 2 * size - 2 - at;
}

SKEIN_ALWAYS_INLINE void add_pair(f32x8& sum, const float* left, const float* right, float tap) {
    f32x8 a, b;
    load(a, left);
    load(b, right);
    sum += (a + b) * tap;
}

/// 8 sizeof...(I) values at `to`: half[0] rows[0] + the sum of half[j] (rows[-j] + rows[j]).
template <std::size_t... I>
SKEIN_ALWAYS_INLINE void filter_block(float* to, const filter_run& run, const float* const* rows,
                                      std::ptrdiff_t x, std::index_sequence<I...>) {
    f32x8 sum[sizeof...(I)];
    (load(sum[I], rows[0] + x + 8 * I), ...);
    ((sum[I] *= run.half[0]), ...);
    for (std::ptrdiff_t j = 1; j <= run.radius; ++j) {
        const float *const left = rows[-j] + x, *const right = rows[j] + x, tap = run.half[j];
        (add_pair(sum[I], left + 8 * I, right + 8 * I, tap), ...);
    }
    (store(to + x + 8 * I, sum[I]), ...);
}

/// Values [x, last) of one row.
SKEIN_ALWAYS_INLINE void filter_row(float* to, const filter_run& run, const float* const* rows,
                                    std::ptrdiff_t x, std::ptrdiff_t last) {
    for (; x + 64 <= last; x += 64) filter_block(to, run, rows, x, std::make_index_sequence<8>());
    for (; x + 32 <= last; x += 32) filter_block(to, run, rows, x, std::make_index_sequence<4>());
    for (; x + 8 <= last; x += 8) filter_block(to, run, rows, x, std::make_index_sequence<1>());
    for (; x < last; ++x) {
        float sum = rows[0][x] * run.half[0];
        for (std::ptrdiff_t j = 1; j <= run.radius; ++j)
            sum = sum + (rows[-j][x] + rows[j][x]) * run.half[j];
        to[x] = sum;
    }
}

SKEIN_ALWAYS_INLINE void filter_body(const filter_run& run) {
    const auto radius = run.radius, width = run.width, padded = width + 2 * radius;
    // Down the columns in strips, if the rows that one result needs would not stay in the
    // first-level cache.
    const auto strip = (filter_run::band + 2 * radius) * width > 5000 ? 64 : width;
    for (std::ptrdiff_t first = 0; first < run.height; first += filter_run::band) {
        const auto end = std::min(run.height, first + filter_run::band);
        for (std::ptrdiff_t i = 0; i < end - first + 2 * radius; ++i)
            run.rows[i] = run.from + reflected(first - radius + i, run.height) * width;
        for (std::ptrdiff_t x = 0; x < width; x += strip)
            for (std::ptrdiff_t y = first; y < end; ++y)
                filter_row(run.columns + (y - first) * padded + radius, run,
                           run.rows + (y - first) + radius, x, std::min(width, x + strip));
        for (std::ptrdiff_t y = first; y < end; ++y) {
            float* const row = run.columns + (y - first) * padded + radius;
            for (std::ptrdiff_t j = 1; j <= radius; ++j) {
                row[-j] = row[j];
                row[width - 1 + j] = row[width - 1 - j];
            }
            for (std::ptrdiff_t j = 0; j <= 2 * radius; ++j) run.rows[j] = row - radius + j;
            filter_row(run.to + y * width, run, run.rows + radius, 0, width);
        }
    }
}

SKEIN_INLINE void filter_plane(const filter_run& run) { filter_body(run); }
SKEIN_AVX2 SKEIN_INLINE void filter_plane_avx2(const filter_run& run) { filter_body(run); }

} // namespace skein::data::detail
SKEIN_EXACT_END
