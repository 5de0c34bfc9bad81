// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/train/unit.hpp>.

#include <skein/core/error.hpp>
#include <skein/torch/torch.hpp>
#include <skein/train/detail/unit_recompute.ipp>

namespace skein::train {

SKEIN_INLINE unit_hooks::~unit_hooks() = default;
SKEIN_INLINE unit_mark::~unit_mark() = default;

namespace detail {

SKEIN_INLINE bool gradients_are_on() { return torch::GradMode::is_enabled(); }

SKEIN_INLINE at::Tensor cast_to(const at::Tensor& tensor, at::ScalarType type) {
    const bool fits =
        !tensor.defined() || !tensor.is_floating_point() || tensor.scalar_type() == type;
    return fits ? tensor : tensor.to(type);
}

SKEIN_INLINE void refuse_recompute() {
    throw error(
        errc::not_supported,
        "not supported: recomputing a block whose forward takes tensors inside of other types")
        .with_hint("give them as arguments of their own, or leave the block out of "
                   "checkpoint_activations()");
}

} // namespace detail
} // namespace skein::train
