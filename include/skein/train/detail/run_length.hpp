// SPDX-License-Identifier: Apache-2.0
#pragma once
// How long a run is when the samples of a step may change: in samples, not in steps. Used by
// <skein/train/detail/feeder.ipp> alone.
//
// A run has as many samples as its steps would have with the batch that it began with. Where the
// schedule of the learning rate stands follows from them, in steps of that first batch. Steps of
// one batch size all through come to exactly what max_steps or epochs say.
//
// Where a rule measures what a step is worth (train/steering.hpp), the run has as many steps of the
// first batch, each counted by its worth: a step of four times the samples that is worth two counts as
// two. Samples are then those of first batches, and passes over the data end no run.

#include <skein/train/run_config.hpp>
#include <skein/train/sampler.hpp>

#include <algorithm>
#include <cstdint>

namespace skein::train::detail {

/// How far a run has come; every rank has the same.
struct run_progress {
    std::uint64_t units = 0;  ///< samples; a batch cut short by the end of an epoch counts in whole
                              ///< first batches, as a step does
    std::uint64_t epoch = 0;  ///< begun, the first is 0
    std::uint64_t within = 0; ///< samples of it
};

class run_length {
public:
    ///   samples  of an epoch; 0: not known
    ///   steps    of the run, by the first batch; 0: not known
    run_length(const run_config& config, std::uint64_t samples, std::uint64_t steps)
        : first_(static_cast<std::uint64_t>(config.global_batch)), samples_(samples),
          epochs_(static_cast<std::uint64_t>(std::max<std::int64_t>(0, config.epochs))),
          last_(config.last), all_(steps * first_) {}

    /// Steps count by their worth from here on.
    void go_by_worth() noexcept { by_worth_ = true; }
    [[nodiscard]] bool goes_by_worth() const noexcept { return by_worth_; }

    /// Takes a step of `count` samples where `asked` were wanted.
    void take(run_progress& to, std::uint64_t count, std::uint64_t asked) const noexcept {
        to.units += counted(count, asked);
    }
    /// What such a step counts as: one that the end of an epoch cut short as whole first batches.
    [[nodiscard]] std::uint64_t counted(std::uint64_t count, std::uint64_t asked) const noexcept {
        const auto whole = (count + first_ - 1) / first_ * first_;
        return count < asked ? std::min(asked, whole) : count;
    }

    /// Samples since the beginning, for batches of so many from here on.
    [[nodiscard]] std::uint64_t units(const run_progress& at, std::uint64_t batch) const noexcept {
        if (!by_epochs() || by_worth_) return at.units;
        if (last_ == last_batch::carry) return at.epoch * samples_ + at.within;
        const auto each = per_epoch();
        const auto begun = is_spent(at, batch) ? each : std::min(at.within, each - 1);
        return at.epoch * each + begun;
    }
    /// Steps of the first batch that they come to.
    [[nodiscard]] std::uint64_t first_steps(const run_progress& at,
                                            std::uint64_t batch) const noexcept {
        return units(at, batch) / first_;
    }
    /// Epochs that are over.
    [[nodiscard]] std::uint64_t epochs_done(const run_progress& at,
                                            std::uint64_t batch) const noexcept {
        if (by_worth_ && samples_ > 0) return at.units / std::max(first_, per_epoch());
        return at.epoch + (is_spent(at, batch) ? 1 : 0);
    }

    /// What the next step may have: fewer at the end of the run.
    [[nodiscard]] std::uint64_t most(const run_progress& at, std::uint64_t batch) const noexcept {
        if (all_ == 0 || by_worth_ || ends_with_epochs()) return batch;
        const auto seen = units(at, batch);
        return seen < all_ ? std::min(batch, all_ - seen) : batch;
    }

    /// Steps to the end with this batch; 0 as well when nobody knows.
    ///   worth  of a step, where it counts: at least 1
    [[nodiscard]] std::uint64_t steps_left(run_progress at, std::uint64_t batch,
                                           std::uint64_t worth = 1) const noexcept {
        if (all_ == 0) return 0;
        const auto up = [](std::uint64_t a, std::uint64_t b) { return (a + b - 1) / b; };
        if (by_worth_) return at.units < all_ ? up(all_ - at.units, worth) : 0;
        if (ends_with_epochs()) {
            const auto steps = [&](std::uint64_t left) {
                return last_ == last_batch::drop ? left / batch : up(left, batch);
            };
            if (at.epoch >= epochs_) return 0;
            return steps(samples_ - std::min(samples_, at.within)) +
                   (epochs_ - at.epoch - 1) * steps(samples_);
        }
        auto seen = units(at, batch);
        if (last_ != last_batch::shorten || samples_ == 0)
            return seen < all_ ? up(all_ - seen, batch) : 0;
        std::uint64_t steps = 0;
        while (seen < all_) { // epoch by epoch: their last batches are short
            if (at.within >= samples_) at.within = 0;
            const auto full = (samples_ - at.within) / batch;
            if (full * batch >= all_ - seen) return steps + up(all_ - seen, batch);
            steps += full;
            seen += full * batch;
            const auto rest = samples_ - at.within - full * batch;
            at.within = samples_;
            if (rest == 0) continue;
            run_progress one;
            take(one, std::min(rest, all_ - seen), std::min(batch, all_ - seen));
            seen += one.units;
            steps += 1;
        }
        return steps;
    }

private:
    [[nodiscard]] bool by_epochs() const noexcept { return epochs_ > 0 && samples_ > 0; }
    [[nodiscard]] bool ends_with_epochs() const noexcept {
        return by_epochs() && last_ != last_batch::carry;
    }
    [[nodiscard]] std::uint64_t per_epoch() const noexcept {
        const auto full = samples_ / first_;
        return (full + (last_ == last_batch::shorten && samples_ % first_ != 0 ? 1 : 0)) * first_;
    }
    [[nodiscard]] bool is_spent(const run_progress& at, std::uint64_t batch) const noexcept {
        if (samples_ == 0) return false;
        if (last_ == last_batch::drop) return at.within > 0 && at.within + batch > samples_;
        return at.within >= samples_;
    }

    std::uint64_t first_, samples_, epochs_;
    last_batch last_;
    std::uint64_t all_; // samples of the run; 0: not known
    bool by_worth_ = false;
};

} // namespace skein::train::detail
