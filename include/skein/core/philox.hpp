// SPDX-License-Identifier: Apache-2.0
#pragma once
// Philox4x32-10: random bits as a pure function of (counter, key).
//
// Because nothing is carried from one draw to the next, any rank can draw the value of any position
// without drawing the ones before it, and a resumed run continues exactly. Source: Salmon et al.,
// "Parallel random numbers: as easy as 1, 2, 3" (2011); checked against Random123's known answers.
//
//     philox_stream random(seed, rank);
//     std::uint64_t bits = random.next();

#include <skein/core/config.hpp>

#include <array>
#include <cstddef>
#include <cstdint>

namespace skein {

/// Which bits of a stream: any 128-bit number.
using philox_counter = std::array<std::uint32_t, 4>;
/// Which stream.
using philox_key = std::array<std::uint32_t, 2>;

/// 128 random bits for one counter under one key.
[[nodiscard]] constexpr std::array<std::uint32_t, 4> philox(philox_counter counter,
                                                            philox_key key) noexcept {
    for (int round = 0; round < 10; ++round) {
        const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * counter[0];
        const std::uint64_t p1 = std::uint64_t{0xCD9E8D57u} * counter[2];
        counter = {static_cast<std::uint32_t>(p1 >> 32) ^ counter[1] ^ key[0],
                   static_cast<std::uint32_t>(p1),
                   static_cast<std::uint32_t>(p0 >> 32) ^ counter[3] ^ key[1],
                   static_cast<std::uint32_t>(p0)};
        key[0] += 0x9E3779B9u;
        key[1] += 0xBB67AE85u;
    }
    return counter;
}

namespace detail {
/// Uniform in [0, bound) from a function that gives 64 uniform bits, without bias; bound > 0.
template <class Draw>
constexpr std::uint64_t below(Draw draw, std::uint64_t bound) {
    __extension__ using wide = unsigned __int128;
    const std::uint64_t threshold = (0 - bound) % bound;
    for (;;) {
        const wide product = static_cast<wide>(draw()) * bound;
        if (static_cast<std::uint64_t>(product) >= threshold)
            return static_cast<std::uint64_t>(product >> 64);
    }
}
} // namespace detail

/// The sequence of a (seed, stream) pair; position() and seek() make it resumable.
/// Meets std::uniform_random_bit_generator.
class philox_stream {
public:
    using result_type = std::uint64_t;

    constexpr explicit philox_stream(std::uint64_t seed, std::uint64_t stream = 0) noexcept
        : seed_(seed), stream_(stream) {}

    [[nodiscard]] static constexpr result_type min() noexcept { return 0; }
    [[nodiscard]] static constexpr result_type max() noexcept { return ~result_type{0}; }

    /// 64 uniform bits.
    constexpr std::uint64_t next() noexcept {
        const std::uint64_t block = position_ >> 1;
        if (!has_block_ || block != block_) {
            bits_ = philox({low(block), high(block), low(stream_), high(stream_)},
                           {low(seed_), high(seed_)});
            block_ = block;
            has_block_ = true;
        }
        const std::size_t half = (position_++ & 1) * 2;
        return std::uint64_t{bits_[half + 1]} << 32 | bits_[half];
    }
    constexpr result_type operator()() noexcept { return next(); }

    /// Uniform in [0, bound), without bias; bound > 0. May use more than one draw.
    constexpr std::uint64_t below(std::uint64_t bound) noexcept {
        return detail::below([this] { return next(); }, bound);
    }
    /// Uniform in [0, 1) with 53 random bits.
    constexpr double unit() noexcept { return static_cast<double>(next() >> 11) * 0x1p-53; }

    /// Number of 64-bit values drawn so far.
    [[nodiscard]] constexpr std::uint64_t position() const noexcept { return position_; }
    /// Continues as if `position` values had been drawn.
    constexpr void seek(std::uint64_t position) noexcept { position_ = position; }

private:
    static constexpr std::uint32_t low(std::uint64_t v) { return static_cast<std::uint32_t>(v); }
    static constexpr std::uint32_t high(std::uint64_t v) {
        return static_cast<std::uint32_t>(v >> 32);
    }

    std::uint64_t seed_, stream_;
    std::uint64_t position_ = 0, block_ = 0;
    std::array<std::uint32_t, 4> bits_{};
    bool has_block_ = false;
};

} // namespace skein
