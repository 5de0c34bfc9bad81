// SPDX-License-Identifier: Apache-2.0
#pragma once
// A batch that follows the gradients: as many samples per step as are worth their time, and a rate that
// goes with them.
//
//     skein::Trainer<skein::DDP<>, skein::adaptive_batch> trainer(
//         ctx, config, skein::adaptive_batch({.max = 1024, .lo = 16, .hi = 256}));
//
// The run begins with config.global_batch samples. From then on the rule keeps averages of how noisy
// gradients are and of how long steps take; every so often rank 0 looks for the batch with the largest
// goodput (goodput/goodput.hpp), and when that is better than the one there is by `hysteresis`, all
// ranks take it. The run's length is in steps of the first batch: a step counts as what it is worth, so
// a run ends when it has come as far as with the first batch, not when it has seen as many samples.
//   source: Qiao et al. 2021 (Pollux, OSDI); the rates: goodput/rate_rule.hpp

#include <skein/goodput/goodput.hpp>
#include <skein/goodput/gradient_noise.hpp>
#include <skein/goodput/rate_rule.hpp>
#include <skein/goodput/step_time.hpp>
#include <skein/train/callbacks.hpp>
#include <skein/train/description.hpp>
#include <skein/train/gradient_look.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace skein::train::detail {

/// A row of events.jsonl by which adaptive_batch has changed the plan behind a step.
struct batch_change {
    std::uint64_t step = 0;
    bool of_micro_batches = false; ///< else of the global batch
    std::int64_t from = 0, to = 0;
};
/// Those of a text of such rows; rows of others are left out.
///   where   for messages: "runs/a/events.jsonl"
///   errors  malformed, with the line: no row, a decision without its numbers, steps that go back
[[nodiscard]] std::vector<batch_change> read_batch_changes(std::string_view rows,
                                                           const std::string& where);

} // namespace skein::train::detail

namespace skein {

struct adaptive_batch_options {
    std::int64_t max = 0; ///< samples of a step at most: at least the first batch
    std::int64_t lo = 1;  ///< samples that a rank computes at once: at least
    std::int64_t hi = 0;  ///< and at most; 0: as many as `max`
    /// A rank whose part is more than `hi` computes it in several micro-batches; so does one that is
    /// alone, as one gradient says little of its noise. Without it a single worker keeps its batch,
    /// but with logical shards.
    bool accumulation = false;
    /// For SGD adascale or linear, for Adam and its kin adamscale, sqrt or legw; same: none.
    goodput::rate_rule rate = goodput::rate_rule::adascale;
    double warm_up = 0.0; ///< of legw, in steps of the first batch
    /// Time between two decisions, in seconds and in steps: both must have passed. After a change of
    /// the world a tenth of it.
    double every_seconds = 30.0;
    std::uint64_t every_steps = 50;
    double hysteresis = 1.05; ///< so much better must another batch be
    /// Of the averages of the noise, by step of the first batch: how far back they look. Gradients are
    /// large and little noisy at first, so a long memory (AdaptDL: 0.999) sees too little noise later.
    double smoothing = 0.99;
    /// A run's events.jsonl, or a part of it: decisions are those in there, none is made here.
    std::string replay{};
    /// Seconds that pass; none: a steady clock.
    std::function<double()> clock{};
};

/// The callback. On every rank; rank 0 alone measures and decides, its word goes with the row.
class adaptive_batch {
public:
    static constexpr std::string_view rule_name = "adaptive_batch";
    static constexpr bool changes_batch = true;
    static constexpr std::size_t word_size = 7;
    /// Steps with statistics before the first decision.
    static constexpr std::uint64_t least_steps = 20;

    /// Throws errc::usage for options that make no sense; with `replay` what reading it throws, and
    /// errc::malformed for a row that is none.
    explicit adaptive_batch(adaptive_batch_options options);

    void describe(train::description& to) const;
    [[nodiscard]] train::gradient_look look() const;
    /// Throws errc::usage for a rate rule that does not suit the optimizer, and a max above the data.
    void on_start(const train::start_info& s);
    [[nodiscard]] double gain(double scale) const { return goodput::gain_of(noise_.all(), scale); }
    [[nodiscard]] double rate(const train::rate_info& step) const;
    /// {number of the decision, batch, micro-batches, noise scale in samples, predicted and measured
    /// seconds of a step, goodput by the one before}.
    [[nodiscard]] std::array<double, word_size> word();
    train::decision on_step(const train::step_info& s);
    /// What the ranks of the world can hold. Throws errc::usage for a max below the first batch, and
    /// for micro-batches without `accumulation`; errc::not_supported with a stream.
    train::decision on_world(const train::world_change& world);

    /// Gradients' averages, times, and what was decided last: numbers that read back to the same bits.
    [[nodiscard]] std::string state() const;
    /// Throws errc::malformed for a text that is no state().
    void restore(std::string_view saved);

    /// How noisy gradients are, as the averages stand.
    [[nodiscard]] const goodput::gradient_noise& noise() const noexcept { return noise_; }
    /// The times that were measured.
    [[nodiscard]] const goodput::step_times& times() const noexcept { return times_; }

private:
    [[nodiscard]] train::decision replay(const train::step_info& s) const;
    void measure(const train::step_info& s);
    [[nodiscard]] goodput::step_shape shape_of(std::int64_t batch,
                                               std::int64_t micros) const noexcept;
    [[nodiscard]] std::int64_t most() const noexcept;
    [[nodiscard]] std::int64_t most_at_once() const noexcept;
    [[nodiscard]] double now() const;
    void look_for_better();
    void begin_plan(const train::step_plan& plan);

    adaptive_batch_options options_;
    std::vector<train::detail::batch_change> replay_;
    goodput::gradient_noise noise_;
    goodput::step_times times_;
    // Of the world and the plan in force
    int ranks_ = 1, hosts_ = 1, shards_ = 0;
    std::int64_t first_batch_ = 1, batch_ = 1, micros_ = 1;
    // On rank 0: when it looks for another batch
    bool is_new_world_ = true;
    double looked_at_ = 0.0;
    std::uint64_t steps_ = 0;   // since it has looked, or since the world or the plan is another
    std::uint64_t strange_ = 0; // steps in a row whose times are far from the mean
    std::uint64_t heard_ = 0;   // decisions that were followed
    std::array<double, word_size> word_{}; // the newest
};

} // namespace skein

#if SKEIN_HEADER_ONLY
#include <skein/train/detail/adaptive_batch.ipp>
#endif
