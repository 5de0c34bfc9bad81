// SPDX-License-Identifier: Apache-2.0
#pragma once
// Random numbers of a row: a pure function of (seed, epoch, sample, operator).
//
// A row that is made again, on another thread, host or compiler, draws the same numbers, bit for
// bit: Philox gives the bits, and logarithm, sine and cosine are polynomials of our own.
//
//     data::draws random(seed, epoch, sample, 0);
//     float sigma = random.uniform(0.1f, 2.0f);
//     random.fill_normal(pixels);
//
//   source: Philox4x32-10 of <skein/core/philox.hpp>; Box and Muller 1958; polynomials of Cephes

#include <skein/core/philox.hpp>

#include <cstdint>
#include <span>

namespace skein::data {

/// The draws of one operator for one row, one after the other.
class draws {
public:
    /// The key is splitmix64 of (seed, epoch, operation), the stream is the sample. Fixed for ever.
    draws(std::uint64_t seed, std::uint64_t epoch, std::uint64_t sample, std::uint64_t operation);

    /// 64 uniform bits.
    std::uint64_t bits() noexcept { return stream_.next(); }
    /// Uniform in [0, 1) with 53 random bits.
    double unit() noexcept { return stream_.unit(); }
    /// Uniform in [lo, hi); hi only if rounding says so. 24 random bits.
    float uniform(float lo, float hi) noexcept;
    /// Uniform in [0, n), without bias; n > 0. May use more than one draw.
    std::uint64_t integer(std::uint64_t n) noexcept { return stream_.below(n); }
    /// Normal, mean 0, standard deviation 1; no further out than 5.8.
    float normal();
    /// True with probability p.
    bool flip(double p) noexcept { return unit() < p; }

    /// Uniform values in [0, 1), 24 random bits each.
    ///   cost  0.8 ns a value with AVX2; whole groups of 32 are drawn
    void fill_uniform(std::span<float> values);
    /// Normal values, as normal() has them.
    ///   cost  2 ns a value with AVX2; whole groups of 32 are drawn
    ///   errors  mismatch: this program was compiled with -ffast-math
    void fill_normal(std::span<float> values);

private:
    void fill(std::span<float> values, bool normal);

    philox_stream stream_;
    std::uint64_t key_, sample_;
};

} // namespace skein::data

#if SKEIN_HEADER_ONLY
#include <skein/data/detail/draws.ipp>
#endif
