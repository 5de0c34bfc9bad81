// SPDX-License-Identifier: Apache-2.0
#pragma once
// Activation checkpointing: memory for time. Between forward and backward a marked block keeps its
// inputs only, and computes its activations again when its gradients are wanted: a third more
// computing, and of L blocks' activations one block's at a time.
//
//     GPT model(options);                                    // its blocks are skein::unit
//     // all of them; (*model, 2): every second
//     skein::train::checkpoint_activations(*model);
//
// Works under every strategy and without one. The second call sees the random numbers, buffers and
// autocast of the first and leaves them as they are, so losses, gradients and running statistics
// have the bits that they have without. State that a block keeps elsewhere, a counter in a member,
// is changed twice: keep it in a buffer. Not under autograd::grad(), backward() for some inputs, or
// with create_graph: refused.

#include <skein/torch/tensor.hpp>

#include <cstddef>
#include <functional>
#include <string_view>

namespace skein::train {

/// Blocks that are skein::unit, in order of registration: each `every`-th one is computed again in
/// the backward pass from now on, the others are not. 0: none is.
///   returns  how many are
///   errors   invalid_argument when the model has no skein::unit. In a forward pass: not_supported
///            for a block whose arguments hold tensors inside of other types. In a backward pass:
///            not_supported where the second call may not be or is another one (see above;
///            parameters that were written to, train() or eval() since the forward, outputs of
///            other shapes), and over several ranks for a weight that such a block shares with the
///            rest of the model
std::size_t checkpoint_activations(torch::nn::Module& model, int every = 1);

/// Chooses blocks by their name in the model, as in named_modules().
using block_filter = std::function<bool(std::string_view)>;

/// The same for the blocks that `which` says yes to.
std::size_t checkpoint_activations(torch::nn::Module& model, const block_filter& which);

} // namespace skein::train

#if SKEIN_HEADER_ONLY
#include <skein/train/detail/recompute.ipp>
#endif
