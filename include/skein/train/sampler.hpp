// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which samples make up the next batch: the same global order for any number of workers.
//
// Epoch e visits the N samples in the order of a permutation keyed by (seed, e), computed per index,
// so nothing of size N is stored and seeking is O(1). A global batch is the next B places of that
// order; the ranks take contiguous slices of it. State is (seed, epoch, cursor): a run saved by two
// workers goes on with one or three and sees exactly the samples it would have seen.
//
//     sampler order({.samples = text.size() / 128, .batch = 64, .seed = 1});
//     auto mine = order.next(rank, world_size);   // mine.ids
//
//   source: permutation of elastic.md's kind: Feistel with cycle walking (Black and Rogaway 2002)

#include <skein/core/error.hpp>
#include <skein/core/permutation.hpp>
#include <skein/core/result.hpp>

#include <cstdint>
#include <utility>
#include <vector>

#include <fmt/core.h>

namespace skein::train {

/// What to do with the last places of an epoch that do not fill a global batch.
enum class last_batch : std::uint8_t {
    drop,    ///< the epoch ends; every batch is full
    shorten, ///< one short batch; ranks may get unequal (even empty) slices
};

/// Where a sampler stands; goes into checkpoints.
struct sampler_state {
    std::uint64_t seed = 0;
    std::uint64_t epoch = 0;
    std::uint64_t cursor = 0; ///< samples of this epoch already handed out, over all ranks

    friend bool operator==(const sampler_state&, const sampler_state&) = default;
};

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

/// The [first, last) places of `count` that belong to rank of world_size: contiguous, differing by
/// at most one in length.
[[nodiscard]] inline std::pair<std::uint64_t, std::uint64_t> rank_range(std::uint64_t count,
                                                                        int rank,
                                                                        int world_size) noexcept {
    const auto n = static_cast<std::uint64_t>(world_size), r = static_cast<std::uint64_t>(rank);
    const auto base = count / n, extra = count % n;
    const auto first = r * base + (r < extra ? r : extra);
    return {first, first + base + (r < extra ? 1 : 0)};
}

/// Hands out global batches in order. Not thread-safe; every rank has its own, in step.
class sampler {
public:
    /// Throws errc::usage when there are no samples, or fewer than one batch or than workers.
    explicit sampler(sampler_options options, int world_size = 1)
        : options_(options), state_{.seed = options.seed}, order_(make_order()) {
        check(options_, world_size).value();
    }

    /// Whether these numbers can train: errc::usage with both numbers if not.
    [[nodiscard]] static result<void> check(const sampler_options& o, int world_size) {
        const auto world = static_cast<std::uint64_t>(world_size > 0 ? world_size : 0);
        if (world == 0)
            return error(errc::usage, fmt::format("{} workers cannot train", world_size))
                .with_hint("give at least 1");
        if (o.samples == 0)
            return error(errc::usage, "the data set has no samples")
                .with_hint("is the text shorter than the context?");
        if (o.samples < world)
            return error(errc::usage,
                         fmt::format("{} workers but only {} samples", world, o.samples))
                .with_hint(fmt::format("use at most {} workers or more data", o.samples));
        if (o.batch == 0) return error(errc::usage, "a global batch of 0 samples cannot train");
        if (o.batch < world)
            return error(errc::usage, fmt::format("a global batch of {} samples cannot be dealt to "
                                                  "{} workers",
                                                  o.batch, world))
                .with_hint(fmt::format("use a batch of at least {}", world));
        if (o.last == last_batch::drop && o.samples < o.batch)
            return error(errc::usage, fmt::format("{} samples do not fill one global batch of {}",
                                                  o.samples, o.batch))
                .with_hint("use a smaller batch or more data");
        return {};
    }

    /// The next global batch, cut for one rank; moves on to the next epoch by itself.
    [[nodiscard]] batch_slice next(int rank, int world_size) {
        auto left = options_.samples - state_.cursor;
        const bool spent = options_.last == last_batch::drop ? left < options_.batch : left == 0;
        if (spent) {
            state_.epoch += 1;
            state_.cursor = 0;
            order_ = make_order();
            left = options_.samples;
        }
        const auto count = left < options_.batch ? left : options_.batch;
        const auto [first, last] = rank_range(count, rank, world_size);
        batch_slice slice{.epoch = state_.epoch, .global_batch = count, .ids = {}};
        slice.ids.reserve(last - first);
        for (auto place = first; place < last; ++place)
            slice.ids.push_back(order_(state_.cursor + place));
        state_.cursor += count;
        return slice;
    }

    [[nodiscard]] const sampler_state& state() const noexcept { return state_; }
    [[nodiscard]] const sampler_options& options() const noexcept { return options_; }

    /// Goes on from a saved place. Throws errc::mismatch when it lies behind the end of the data.
    void restore(const sampler_state& saved) {
        if (saved.cursor > options_.samples)
            throw error(errc::mismatch,
                        fmt::format("saved position {} lies behind the {} samples of "
                                    "the data set",
                                    saved.cursor, options_.samples))
                .with_hint("was the run started on other data?");
        state_ = saved;
        order_ = make_order();
    }

    /// Full global batches per epoch (with last_batch::shorten, the short one counts too).
    [[nodiscard]] std::uint64_t batches_per_epoch() const noexcept {
        const auto full = options_.samples / options_.batch;
        const bool rest = options_.samples % options_.batch != 0;
        return full + (rest && options_.last == last_batch::shorten ? 1 : 0);
    }

private:
    [[nodiscard]] keyed_permutation make_order() const {
        // splitmix64 of (seed, epoch): neighbouring epochs get unrelated keys.
        std::uint64_t key = state_.seed + (state_.epoch + 1) * 0x9e3779b97f4a7c15ULL;
        key = (key ^ (key >> 30)) * 0xbf58476d1ce4e5b9ULL;
        key = (key ^ (key >> 27)) * 0x94d049bb133111ebULL;
        return keyed_permutation(options_.samples > 0 ? options_.samples : 1, key ^ (key >> 31));
    }

    sampler_options options_;
    sampler_state state_;
    keyed_permutation order_;
};

} // namespace skein::train
