// SPDX-License-Identifier: Apache-2.0
#pragma once
// Exponent and logarithm that are the same on every machine: those of libm differ in their last bits.

#include <skein/data/detail/vectors.hpp>

#include <bit>
#include <cmath>
#include <cstdint>

SKEIN_EXACT_BEGIN
namespace skein::data::detail {

/// e^x for |x| <= 700, near to 1e-15 of it; 0 below.
[[nodiscard]] inline double exponent_of(double x) {
    if (x < -700) return 0;
    // 2^k e^r, |r| <= ln 2 / 2; ln 2 in two parts, the first with zeros at its end.
    const double k = std::floor(x * 1.4426950408889634 + 0.5);
    const double r = (x - k * 0.693147180369123816490) - k * 1.90821492927058770002e-10;
    double sum = 1, term = 1;
    for (int n = 1; n <= 14; ++n) {
        term = term * r / n;
        sum = sum + term;
    }
    return sum *
           std::bit_cast<double>(static_cast<std::uint64_t>(1023 + static_cast<int>(k)) << 52);
}

/// ln x for normal numbers above 0, near to 1e-15.
[[nodiscard]] inline double logarithm_of(double x) {
    // 2^k m, m in [sqrt(1/2), sqrt(2)); ln m = 2 artanh((m - 1) / (m + 1)).
    auto bits = std::bit_cast<std::int64_t>(x) - 0x3fe6a09e667f3bcdLL;
    const auto k = static_cast<double>(bits >> 52);
    bits = (bits & 0xfffffffffffffLL) + 0x3fe6a09e667f3bcdLL;
    const double m = std::bit_cast<double>(bits), s = (m - 1) / (m + 1), z = s * s;
    double sum = 0;
    for (int n = 23; n >= 1; n -= 2) sum = sum * z + 1.0 / n;
    return k * 0.6931471805599453 + 2 * s * sum;
}

} // namespace skein::data::detail
SKEIN_EXACT_END
