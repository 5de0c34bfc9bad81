// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which samples make up the next batch: the same global order for any number of workers.
//
// Epoch e visits the N samples in the order of a permutation keyed by (seed, e), computed per
// index, so nothing of size N is stored and seeking is O(1). A global batch is the next B places of
// that order; the ranks take contiguous slices of it. State is (seed, epoch, cursor): a run saved
// by two workers goes on with one or three and sees exactly the samples it would have seen.
//
//     sampler order({.samples = text.size() / 128, .batch = 64, .seed = 1});
//     auto mine = order.next(rank, world_size);   // mine.ids
//
// The order is data::epoch_order's: pipelines and numbered data visit their samples alike.

#include <skein/core/permutation.hpp>
#include <skein/core/result.hpp>
#include <skein/data/order.hpp>

#include <cstdint>
#include <vector>

namespace skein::train {

/// What to do with the last places of an epoch that do not fill a global batch.
enum class last_batch : std::uint8_t {
    drop,    ///< the epoch ends; every batch is full
    shorten, ///< one short batch; ranks may get unequal (even empty) slices
    carry,   ///< filled up with the first places of the next epoch; every batch is full
};

/// Where a sampler stands; goes into checkpoints.
struct sampler_state {
    std::uint64_t seed = 0;
    std::uint64_t epoch = 0;
    std::uint64_t cursor = 0; ///< samples of this epoch already handed out, over all ranks

    friend bool operator==(const sampler_state&, const sampler_state&) = default;
};

/// The data set and the batches that a sampler deals.
struct sampler_options {
    std::uint64_t samples = 0; ///< N, samples in the data set
    std::uint64_t batch = 1;   ///< B, samples per global batch (all ranks, one step)
    std::uint64_t seed = 0;
    last_batch last = last_batch::drop;
};

/// One rank's part of one global batch.
struct batch_slice {
    std::uint64_t epoch = 0;
    std::uint64_t global_batch = 0; ///< samples of all ranks in this batch
    std::vector<std::uint64_t> ids; ///< this rank's sample numbers, each below N
};

/// The places of `count` that belong to a rank: see data::rank_range.
using data::rank_range;

/// Hands out global batches in order. Not thread-safe; every rank has its own, in step.
class sampler {
public:
    /// Throws errc::usage when there are no samples, or fewer than one batch or than workers.
    explicit sampler(sampler_options options, int world_size = 1);

    /// Whether these numbers can train: errc::usage with both numbers if not.
    [[nodiscard]] static result<void> check(const sampler_options& o, int world_size);

    /// The next global batch, cut for one rank; moves on to the next epoch by itself.
    [[nodiscard]] batch_slice next(int rank, int world_size);

    /// From here on so many samples per global batch, at least 1.
    void deal_by(std::uint64_t batch) noexcept { options_.batch = batch; }

    [[nodiscard]] const sampler_state& state() const noexcept { return state_; }
    [[nodiscard]] const sampler_options& options() const noexcept { return options_; }

    /// Batches of so many epochs from the beginning. With carry: whole batches, the rest is left
    /// out.
    [[nodiscard]] std::uint64_t batches_of(std::uint64_t epochs) const noexcept;

    /// Goes on from a saved place. Throws errc::mismatch when it lies behind the end of the data.
    void restore(const sampler_state& saved);

    /// Full global batches within an epoch (with last_batch::shorten, the short one counts too).
    [[nodiscard]] std::uint64_t batches_per_epoch() const noexcept {
        const auto full = options_.samples / options_.batch;
        const bool rest = options_.samples % options_.batch != 0;
        return full + (rest && options_.last == last_batch::shorten ? 1 : 0);
    }

private:
    void begin_epoch();
    [[nodiscard]] keyed_permutation make_order() const;

    sampler_options options_;
    sampler_state state_;
    keyed_permutation order_;
};

} // namespace skein::train

#if SKEIN_HEADER_ONLY
#include <skein/train/detail/sampler.ipp>
#endif
