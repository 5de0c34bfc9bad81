// SPDX-License-Identifier: Apache-2.0
#pragma once
// The door to LibTorch's CUDA: the only header that includes c10's headers for it. Streams, guards,
// events, how many devices there are, and the allocator.
//
// It needs the headers of CUDA's runtime (scripts/setup unpacks them) and libc10_cuda.so: link
// skein::cuda. It compiles, links and loads without a GPU; there a stream or a guard throws. ATen's
// own headers for CUDA want cuSPARSE and more, and stay out. Never run on a GPU.

#include <skein/core/config.hpp>

#if defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wall"
#pragma GCC diagnostic ignored "-Wextra"
#pragma GCC diagnostic ignored "-Wunused-parameter"
#pragma GCC diagnostic ignored "-Wsign-compare"
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
#endif

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#if __has_include(<c10/cuda/CUDAEvent.h>)
#include <c10/cuda/CUDAEvent.h>
#endif

#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif
