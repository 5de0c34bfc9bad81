// SPDX-License-Identifier: Apache-2.0
#pragma once
// The order in which an epoch visits its samples: a pure function of (samples, seed, epoch).
//
// Nothing of the size of the data set is stored, and any place is found in O(1): a rank, a helper
// on another host and a run that was resumed all compute the same sample for the same place.
//
//     auto order = data::epoch_order(50'000, seed, epoch);
//     std::uint64_t sample = order(place);
//
//   source: permutation of <skein/core/permutation.hpp>: Feistel with cycle walking (Black and
//           Rogaway 2002), keyed by splitmix64 of (seed, epoch)

#include <skein/core/permutation.hpp>

#include <cstdint>
#include <utility>

namespace skein::data {

/// The key of an epoch's order: splitmix64 of (seed, epoch), so that neighbouring epochs get
/// unrelated keys. Fixed for ever: checkpoints rely on it.
[[nodiscard]] constexpr std::uint64_t epoch_key(std::uint64_t seed, std::uint64_t epoch) noexcept {
    std::uint64_t key = seed + (epoch + 1) * 0x9e3779b97f4a7c15ULL;
    key = (key ^ (key >> 30)) * 0xbf58476d1ce4e5b9ULL;
    key = (key ^ (key >> 27)) * 0x94d049bb133111ebULL;
    return key ^ (key >> 31);
}

/// The shuffled order of one epoch: place in [0, samples) to sample in [0, samples).
///   samples  at least 1
[[nodiscard]] inline keyed_permutation epoch_order(std::uint64_t samples, std::uint64_t seed,
                                                   std::uint64_t epoch) {
    return keyed_permutation(samples, epoch_key(seed, epoch));
}

/// The [first, last) places of `count` that belong to rank of world_size: contiguous, differing by
/// at most one in length.
[[nodiscard]] constexpr std::pair<std::uint64_t, std::uint64_t> rank_range(
    std::uint64_t count, int rank, int world_size) noexcept {
    const auto n = static_cast<std::uint64_t>(world_size), r = static_cast<std::uint64_t>(rank);
    const auto base = count / n, extra = count % n;
    const auto first = r * base + (r < extra ? r : extra);
    return {first, first + base + (r < extra ? 1 : 0)};
}

} // namespace skein::data
