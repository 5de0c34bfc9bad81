// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the Trainer asks of a strategy: where parameters and gradients live, and how ranks agree.
//
// A strategy is a type: Trainer<Single>, Trainer<DDP<>>. It is constructed once per run over the
// user's module, which knows nothing of it. One optimizer step then is
//
//     s.begin_step();
//     for each micro-batch m: s.begin_micro(m is the last); loss.backward();
//     s.finish_backward();          // now storage().grads_P() holds the sum over all ranks
//     ... clip, optimizer over storage() ...
//     s.publish();                  // now every rank's module sees the new parameters

#include <skein/torch/tensor.hpp>
#include <skein/train/context.hpp>
#include <skein/train/flat.hpp>

#include <concepts>

namespace skein::train {

/// Laws (the tests of every strategy check them):
///  1. After finish_backward() the owned gradients are the sum over ranks of what each rank's
///     backward passes since begin_step() added; the Trainer weights each loss so that this sum is
///     the gradient of the mean over the global batch.
///  2. The same inputs give the same bits, on every rank and in every run.
///  3. A parameter that no loss depends on, on one rank or all, has gradient zero and never hangs.
///  4. squared_norm(x) of the owned part gives the square norm over the whole model.
///  5. An error of the transport leaves as skein::error from finish_backward(), never as a hang.
template <class S>
concept strategy = requires(S s, bool last, double x) {
    requires std::constructible_from<S, const context&, torch::nn::Module&>;
    { s.storage() } -> std::same_as<flat_storage&>;
    s.begin_step();
    s.begin_micro(last);
    s.finish_backward();
    { s.squared_norm(x) } -> std::convertible_to<double>;
    s.publish();
    s.sync_buffers();
};

} // namespace skein::train
