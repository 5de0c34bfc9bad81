// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tensors and no more of LibTorch: for headers that only hold or hand on tensors and modules.

#include <skein/core/config.hpp>

#if defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wall"
#pragma GCC diagnostic ignored "-Wextra"
#pragma GCC diagnostic ignored "-Wunused-parameter"
#pragma GCC diagnostic ignored "-Wsign-compare"
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
#endif

#include <ATen/core/Tensor.h>

#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif

namespace torch::nn {
class Module;
}
namespace torch::autograd {
struct Node;
}
