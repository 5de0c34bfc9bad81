// SPDX-License-Identifier: Apache-2.0
#pragma once
// Arithmetic on a device that NCCL does not have: averages, and halves as float32.
//
// skein has no kernels of its own. Who can run some on a device gives them to the communicator
// (nccl_options::math); a communicator without them refuses what needs them by name.

#include <skein/dist/buffer.hpp>
#include <skein/dist/cuda_runtime.hpp>

namespace skein::dist {

/// Puts element-wise work on streams; nothing is waited for. The device is the thread's current one.
class device_math {
public:
    device_math() = default;
    device_math(const device_math&) = delete;
    device_math& operator=(const device_math&) = delete;
    virtual ~device_math() = default;

    /// data[i] /= by: once, in float32 for halves, towards zero for i64.
    virtual void divide(cuda_stream on, buffer_view data, int by) = 0;
    /// to[i] = from[i] of as many elements: one of them f32, the other bf16 or f16 (to nearest
    /// even).
    virtual void convert(cuda_stream on, buffer_view to, buffer_view from) = 0;
};

} // namespace skein::dist
