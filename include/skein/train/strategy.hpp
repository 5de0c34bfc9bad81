// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the Trainer asks of a strategy: where parameters and gradients live, and how ranks agree.
//
// A strategy is a type: Trainer<Single>, Trainer<DDP<>>, Trainer<FSDP<auto_wrap<Block>>>. It is
// constructed once per run over the user's module, which knows nothing of it. One optimizer step
// then is
//
//     s.begin_step();
//     for each micro-batch m: s.begin_micro(m is the last); loss.backward();
//     // now the owned gradients of s.store() are summed over all ranks
//     s.finish_backward();
//     ... all ranks agree on the step (a collective), clip, optimizer over what s.store() owns ...
//     s.publish();                  // now every rank's module sees the new parameters

#include <skein/core/error.hpp>
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
///  4. squared_norm(x), x of the owned gradients, gives the square norm over the whole model.
///  5. An error of the transport leaves as skein::error from finish_backward(), never as a hang.
///  6. Between finish_backward() and the first write to a parameter every rank has heard from every
///     other one (the Trainer's row); then publish(). Ranks of a host may share the parameters.
///  7. Between begin_evaluation() and end_evaluation() each rank runs as many forward passes as it
///     likes, without gradients; the module's buffers are those of rank 0.
///  8. abort(why) fails every exchange of the strategy with this reason, here and at the peers.
///  9. After finish() every rank's module is whole and nobody else's business.
/// 10. rebind(), after context::rebind() and on every rank of the new generation, makes the groups
///     anew; store and values stay. A backward pass that was under way is given up; steps begin
///     with begin_step() again. When ranks would own other parts than before: errc::not_supported
///     on every rank, and the strategy is of no use any more.
template <class S>
concept strategy = requires(S s, bool last, double x, const error& why) {
    requires std::constructible_from<S, const context&, torch::nn::Module&>;
    { s.store() } -> std::same_as<flat_store&>;
    s.begin_step();
    s.begin_micro(last);
    s.finish_backward();
    { s.squared_norm(x) } -> std::convertible_to<double>;
    s.publish();
    s.sync_buffers();
    s.begin_evaluation();
    s.end_evaluation();
    s.abort(why);
    s.finish();
    s.rebind();
};

} // namespace skein::train
