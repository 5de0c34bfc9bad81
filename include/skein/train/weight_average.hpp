// SPDX-License-Identifier: Apache-2.0
#pragma once
// An exponential moving average of the weights, of what each rank owns: 1/N of the memory when
// sharded.
//
//     trainer.fit(model, {skein::AdamW{}, {.average = average_options{.decay = 0.9999}}}, ...);
//
// Saved in checkpoints as optim.ema.<parameter>; load_weights(*net, path, {.average = true}) reads
// it.
//   source: Polyak and Juditsky 1992; the warm-up is that of tf.train.ExponentialMovingAverage

#include <skein/train/flat.hpp>
#include <skein/train/optimizers.hpp>

#include <cstdint>
#include <string>

namespace skein::train {

/// average = average + (1 - d) * (weights - average) after every step, d = decay.
struct average_options {
    double decay = 0.999;
    /// d of step t, from 1, is at most (1 + t) / (10 + t): the first weights are soon forgotten.
    bool warm_up = true;
    bool evaluate = true; ///< evaluations see the averages in place of the weights
    bool keep = false;    ///< the module leaves fit() with the averages
};

/// The averages of one rank over what it owns of a store, which must outlive it. They begin as the
/// weights.
class weight_average {
public:
    /// Throws errc::usage when decay is not in [0, 1).
    ///   folder  see make_state_buffer()
    weight_average(average_options options, flat_store& store, const std::string& folder);

    /// After the update of step t, from 1.
    void update(std::uint64_t step);
    /// Exchanges averages and weights of what this rank owns; twice changes nothing. Ranks may
    /// share the weights: nobody may read them meanwhile, and strategy::publish() comes after it.
    void swap();
    /// The averages are in the place of the weights.
    [[nodiscard]] bool is_shown() const noexcept { return shown_; }
    /// Begins again from the weights.
    void restart();

    [[nodiscard]] const average_options& options() const noexcept { return options_; }
    /// store.owned() elements, in the owned layout.
    [[nodiscard]] const at::Tensor& values() const noexcept { return values_; }

private:
    average_options options_;
    flat_store* store_;
    at::Tensor values_;
    update_runs runs_; // parameters, and as their only state the averages
    bool shown_ = false;
};

} // namespace skein::train

namespace skein {
using train::average_options;
}

#if SKEIN_HEADER_ONLY
#include <skein/train/detail/weight_average.ipp>
#endif
