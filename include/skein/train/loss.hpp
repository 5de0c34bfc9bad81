// SPDX-License-Identifier: Apache-2.0
#pragma once
// A loss that is a mean over something other than samples.
//
// A loss that returns a tensor is the mean over the samples it was given, and the trainer weights
// it by their number. Where samples count unequally (tokens that are not masked, boxes in an image)
// the mean of means is not the mean: return the sum and the weight, and the trainer divides the
// summed gradients of all ranks and micro-batches by the summed weight, once.
//
//     const auto loss = [](Net& net, const batch& b) -> skein::weighted_loss {
//         const auto nats_BT = per_token(net->forward(b.inputs_BT), b.targets_BT);
//         return {(nats_BT * b.mask_BT).sum(), b.mask_BT.sum()};
//     };

#include <skein/torch/tensor.hpp>

namespace skein {

/// What a loss function may return in place of a mean. A weight of 0 (everything masked) is fine as
/// long as some rank has more in every step.
struct weighted_loss {
    at::Tensor sum{};    ///< one number, with a gradient
    at::Tensor weight{}; ///< one number, at least 0; no gradient goes through it
};

} // namespace skein
