// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/train/sampler.hpp>.

#include <skein/core/error.hpp>

#include <fmt/core.h>

namespace skein::train {

SKEIN_INLINE sampler::sampler(sampler_options options, int world_size)
    : options_(options), state_{.seed = options.seed}, order_(make_order()) {
    check(options_, world_size).value();
}

SKEIN_INLINE result<void> sampler::check(const sampler_options& o, int world_size) {
    const auto world = static_cast<std::uint64_t>(world_size > 0 ? world_size : 0);
    if (world == 0)
        return error(errc::usage, fmt::format("{} workers cannot train", world_size))
            .with_hint("give at least 1");
    if (o.samples == 0)
        return error(errc::usage, "the data set has no samples")
            .with_hint("is the text shorter than the context?");
    if (o.samples < world)
        return error(errc::usage, fmt::format("{} workers but only {} samples", world, o.samples))
            .with_hint(fmt::format("use at most {} workers or more data", o.samples));
    if (o.batch == 0) return error(errc::usage, "a global batch of 0 samples cannot train");
    if (o.batch < world)
        return error(errc::usage,
                     fmt::format("a global batch of {} samples cannot be dealt to {} workers",
                                 o.batch, world))
            .with_hint(fmt::format("use a batch of at least {}", world));
    if (o.last == last_batch::drop && o.samples < o.batch)
        return error(errc::usage, fmt::format("{} samples do not fill one global batch of {}",
                                              o.samples, o.batch))
            .with_hint("use a smaller batch or more data");
    return {};
}

SKEIN_INLINE batch_slice sampler::next(int rank, int world_size) {
    auto left = options_.samples - state_.cursor;
    const bool spent = options_.last == last_batch::drop ? left < options_.batch : left == 0;
    if (spent) {
        begin_epoch();
        left = options_.samples;
    }
    const bool carries = options_.last == last_batch::carry;
    const auto count = left < options_.batch && !carries ? left : options_.batch;
    const auto [first, last] = rank_range(count, rank, world_size);
    batch_slice slice{.epoch = state_.epoch, .global_batch = count, .ids = {}};
    slice.ids.reserve(last - first);
    for (std::uint64_t place = 0; place < count; ++place) {
        if (state_.cursor == options_.samples) begin_epoch(); // carried over
        if (place >= first && place < last) slice.ids.push_back(order_(state_.cursor));
        state_.cursor += 1;
    }
    return slice;
}

SKEIN_INLINE std::uint64_t sampler::batches_of(std::uint64_t epochs) const noexcept {
    if (options_.last != last_batch::carry) return epochs * batches_per_epoch();
    const auto whole = epochs * options_.samples / options_.batch;
    return whole > 0 ? whole : 1;
}

SKEIN_INLINE void sampler::begin_epoch() {
    state_.epoch += 1;
    state_.cursor = 0;
    order_ = make_order();
}

SKEIN_INLINE void sampler::restore(const sampler_state& saved) {
    if (saved.cursor > options_.samples)
        throw error(errc::mismatch,
                    fmt::format("saved position {} lies behind the {} samples of the data set",
                                saved.cursor, options_.samples))
            .with_hint("was the run started on other data?");
    state_ = saved;
    order_ = make_order();
}

SKEIN_INLINE keyed_permutation sampler::make_order() const {
    return data::epoch_order(options_.samples > 0 ? options_.samples : 1, state_.seed,
                             state_.epoch);
}

} // namespace skein::train
