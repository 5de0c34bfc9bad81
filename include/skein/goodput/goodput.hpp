// SPDX-License-Identifier: Apache-2.0
#pragma once
// Goodput: samples per second, each counted by what it is worth beside one of the first batch. It grows
// with the batch as long as steps get cheaper by the sample, and falls once further samples say little.
//
//     const goodput_model model{fit(seen.means()), noise.all(), 64};
//     const auto best = model.best({.nodes = 1, .ranks = 4, .most = 4096, .micro_most = 128});
//     best.shape.batch();
//
//   source: Qiao et al. 2021 (Pollux, OSDI)

#include <skein/goodput/gradient_noise.hpp>
#include <skein/goodput/step_time.hpp>

#include <cstdint>

namespace skein::goodput {

/// What a batch may be.
struct batch_limits {
    int nodes = 1, ranks = 1;
    std::int64_t most = 0;        ///< samples of a step; at least the first batch
    std::int64_t micro_least = 1; ///< of a rank at once
    std::int64_t micro_most = 0;  ///< 0: as many as `most`
    /// A rank may compute its samples in several parts. One rank then has two at least when its batch
    /// is larger than the first: one gradient alone says little of its noise.
    bool accumulation = false;
    /// The gradient of a rank is seen in parts, however it computes them (logical shards): one rank
    /// may have a batch larger than the first without micro-batches.
    bool sees_parts = false;
};

/// A step, and what it comes to.
struct batch_choice {
    step_shape shape{};
    double goodput = 0.0; ///< 0: no batch fits into the limits
};

struct goodput_model {
    step_time_model time{};
    gradient_moments gradients{};
    std::int64_t first_batch = 1; ///< b0

    /// Of a batch of so many samples, at most 1.
    [[nodiscard]] double efficiency(double batch) const noexcept;
    /// Samples of the first batch per second.
    [[nodiscard]] double goodput(const step_shape& step) const noexcept;
    /// The best of 50 batches, evenly on a scale of ratios between the first one and the most. All
    /// ranks compute the same number of samples: a batch is rounded up to that.
    ///   errors  invalid_argument: ranks, nodes or limits that cannot be
    [[nodiscard]] batch_choice best(const batch_limits& within) const;
};

} // namespace skein::goodput

#if SKEIN_HEADER_ONLY
#include <skein/goodput/detail/goodput.ipp>
#endif
