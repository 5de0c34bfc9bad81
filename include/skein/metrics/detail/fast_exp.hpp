// SPDX-License-Identifier: Apache-2.0
#pragma once
// exp() of numbers up to 0 in a form that compilers turn into vectors, and sums of it.

#include <bit>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>

namespace skein::metrics::detail {

/// exp(x) for x <= 0, to 2e-7 of it; 0 below -87. NaN stays NaN.
/// Source: Cephes, expf (Moshier): x = n ln 2 + r, and a polynomial of r.
[[nodiscard]] inline float fast_exp(float x) noexcept {
    const float bounded = x < -87.0f ? -87.0f : x;
    // Rounds: what is added leaves no bits for a fraction.
    const float shifted = bounded * 1.44269504088896341f + 12582912.0f;
    const float n = shifted - 12582912.0f;
    const float r = (bounded - n * 0.693359375f) + n * 2.12194440e-4f;
    float y = 1.9875691500e-4f;
    y = y * r + 1.3981999507e-3f;
    y = y * r + 8.3334519073e-3f;
    y = y * r + 4.1665795894e-2f;
    y = y * r + 1.6666665459e-1f;
    y = y * r + 5.0000001201e-1f;
    y = y * r * r + r + 1.0f;
    // The last bits of what was rounded are those of n.
    const auto scale = std::bit_cast<float>((std::bit_cast<std::uint32_t>(shifted) + 127u) << 23);
    return x < -87.0f ? 0.0f : y * scale;
}
[[nodiscard]] inline double fast_exp(double x) noexcept { return std::exp(x); }

/// The largest of n scores, n > 0; NaN among them is not looked for.
template <std::floating_point T>
[[nodiscard]] T largest_of(const T* scores, std::size_t n, std::size_t stride) noexcept {
    constexpr std::size_t lanes = 16;
    T most[lanes];
    for (auto& each : most) each = scores[0];
    std::size_t i = 0;
    if (stride == 1)
        for (; i + lanes <= n; i += lanes)
            for (std::size_t k = 0; k < lanes; ++k)
                most[k] = scores[i + k] > most[k] ? scores[i + k] : most[k];
    for (; i < n; ++i) most[0] = scores[i * stride] > most[0] ? scores[i * stride] : most[0];
    for (const T each : most) most[0] = each > most[0] ? each : most[0];
    return most[0];
}

/// The sum of exp(score - most).
template <std::floating_point T>
[[nodiscard]] double sum_of_exp(const T* scores, std::size_t n, std::size_t stride,
                                T most) noexcept {
    constexpr std::size_t lanes = 16, block = 16 * lanes; // float32 sums stay short
    double all = 0;
    std::size_t i = 0;
    if (stride == 1)
        while (i + lanes <= n) {
            T sums[lanes] = {};
            const auto end = i + block < n ? i + block : n;
            for (; i + lanes <= end; i += lanes)
                for (std::size_t k = 0; k < lanes; ++k) sums[k] += fast_exp(scores[i + k] - most);
            for (const T sum : sums) all += sum;
        }
    for (; i < n; ++i) all += fast_exp(scores[i * stride] - most);
    return all;
}

} // namespace skein::metrics::detail
