// SPDX-License-Identifier: Apache-2.0
#pragma once
// Modules by type, as programs name them: a holder (TORCH_MODULE) or the class that it holds.

#include <skein/torch/tensor.hpp>

namespace skein::train::detail {

/// The type of a module: of a holder the one it holds.
template <class Block>
struct module_type {
    using type = Block;
};
template <class Block>
    requires requires { typename Block::ContainedType; }
struct module_type<Block> {
    using type = typename Block::ContainedType;
};

/// Whether the module is of one of these types, or derived from it.
template <class... Types>
[[nodiscard]] bool is_any_of(const torch::nn::Module& m) {
    return ((dynamic_cast<const typename module_type<Types>::type*>(&m) != nullptr) || ...);
}

} // namespace skein::train::detail
