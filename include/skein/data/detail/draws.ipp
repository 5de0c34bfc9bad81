// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/data/draws.hpp>.

#include <skein/data/detail/draws_kernels.hpp>
#include <skein/data/detail/self_test.hpp>
#include <skein/data/order.hpp>

#include <algorithm>
#include <array>

SKEIN_EXACT_BEGIN
namespace skein::data {

SKEIN_INLINE draws::draws(std::uint64_t seed, std::uint64_t epoch, std::uint64_t sample,
                          std::uint64_t operation)
    : stream_(0), key_(epoch_key(epoch_key(seed, epoch), operation)), sample_(sample) {
    stream_ = philox_stream(key_, sample_);
}

SKEIN_INLINE float draws::uniform(float lo, float hi) noexcept {
    const auto part = static_cast<float>(stream_.next() >> 40) * 0x1p-24f;
    return lo + (hi - lo) * part;
}

SKEIN_INLINE float draws::normal() {
    detail::require_exact_kernels();
    const auto words = stream_.next();
    return detail::normal_of(static_cast<std::uint32_t>(words),
                             static_cast<std::uint32_t>(words >> 32))
        .cosine;
}

SKEIN_INLINE void draws::fill(std::span<float> values, bool normal) {
    detail::require_exact_kernels();
    const auto run = detail::has_avx2() ? detail::fill_groups_avx2 : detail::fill_groups;
    detail::philox_place at{key_, sample_, (stream_.position() + 1) / 2};
    const auto whole = values.size() / 32 * 32;
    run(values.data(), whole, at, normal);
    at.block += whole / 4;
    if (whole < values.size()) {
        std::array<float, 32> last;
        run(last.data(), last.size(), at, normal);
        std::copy_n(last.begin(), values.size() - whole, values.begin() + whole);
        at.block += 8;
    }
    stream_.seek(at.block * 2);
}

SKEIN_INLINE void draws::fill_uniform(std::span<float> values) { fill(values, false); }
SKEIN_INLINE void draws::fill_normal(std::span<float> values) { fill(values, true); }

} // namespace skein::data
SKEIN_EXACT_END
