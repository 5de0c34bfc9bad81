// SPDX-License-Identifier: Apache-2.0
#pragma once
// The only door to LibTorch: every other header of skein that needs a tensor includes this one.
//
// LibTorch's own headers do not pass our warning flags; the pragmas keep its noise out of programs
// that turn warnings into errors.

#include <skein/core/config.hpp>

#if defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wall"
#pragma GCC diagnostic ignored "-Wextra"
#pragma GCC diagnostic ignored "-Wunused-parameter"
#pragma GCC diagnostic ignored "-Wsign-compare"
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
#endif

#include <torch/torch.h>

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif

static_assert(TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 6),
              "skein needs LibTorch >= 2.6 (2.15 is what its tests run on)");
