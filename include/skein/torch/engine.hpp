// SPDX-License-Identifier: Apache-2.0
#pragma once
// The door to what torch/torch.h leaves out of autograd: its engine, what happens to tensors that
// it saves, how it casts, and which tensors overlap.

#include <skein/core/config.hpp>

#if defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wall"
#pragma GCC diagnostic ignored "-Wextra"
#pragma GCC diagnostic ignored "-Wunused-parameter"
#pragma GCC diagnostic ignored "-Wsign-compare"
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
#endif

#include <ATen/MemoryOverlap.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif
