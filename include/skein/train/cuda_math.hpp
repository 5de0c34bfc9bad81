// SPDX-License-Identifier: Apache-2.0
#pragma once
// Arithmetic on devices by LibTorch's kernels, for communicators over NCCL: averages, and halves as
// float32.
//
// Part of skein::cuda (torch/cuda.hpp). Never run on a GPU: compiled and linked; its element-wise
// operations have run on the CPU.
//
//     dist::add_nccl_model(std::make_shared<train::cuda_math>());

#include <skein/core/error.hpp>
#include <skein/dist/device_math.hpp>
#include <skein/torch/cuda.hpp>
#include <skein/torch/torch.hpp>

#include <cstdint>

namespace skein::train {

namespace detail {

/// The elements of a buffer as a tensor that owns nothing.
///   errors  not_supported: memory that is not a device's
[[nodiscard]] inline at::Tensor tensor_on_device(dist::buffer_view data) {
    if (data.where.is_cpu())
        throw error(errc::not_supported, "not supported: arithmetic of a device on memory of cpu");
    const auto type = [&] {
        switch (data.type) {
        case dist::dtype::f32: return at::kFloat;
        case dist::dtype::bf16: return at::kBFloat16;
        case dist::dtype::f64: return at::kDouble;
        case dist::dtype::i64: return at::kLong;
        case dist::dtype::f16: return at::kHalf;
        case dist::dtype::u8: break;
        }
        return at::kByte;
    }();
    const at::Device where(at::kCUDA, static_cast<at::DeviceIndex>(data.where.index));
    return at::from_blob(data.data, {static_cast<std::int64_t>(data.count)},
                         at::TensorOptions().dtype(type).device(where));
}

/// Each element by a number: in float32 for halves, rounded once; integers towards zero. The number
/// lies where the elements do: by one of the host LibTorch's kernels for devices would multiply
/// with what 1 / by is rounded to.
inline void divide_elements(at::Tensor data, int by) {
    const at::NoGradGuard no_grad;
    const bool whole = at::isIntegralType(data.scalar_type(), /*includeBool=*/false);
    const bool half = data.element_size() == 2;
    const auto number =
        at::full({}, by, data.options().dtype(half ? at::kFloat : data.scalar_type()));
    if (half)
        data.copy_(data.to(at::kFloat).div_(number));
    else if (whole)
        data.div_(number, "trunc");
    else
        data.div_(number);
}

} // namespace detail

/// dist::device_math by LibTorch: puts its kernels on the stream that it is given.
class cuda_math final : public dist::device_math {
public:
    void divide(dist::cuda_stream on, dist::buffer_view data, int by) override {
        const c10::cuda::CUDAStreamGuard here(stream_of(on, data.where));
        detail::divide_elements(detail::tensor_on_device(data), by);
    }
    void convert(dist::cuda_stream on, dist::buffer_view to, dist::buffer_view from) override {
        const c10::cuda::CUDAStreamGuard here(stream_of(on, to.where));
        const at::NoGradGuard no_grad;
        detail::tensor_on_device(to).copy_(detail::tensor_on_device(from));
    }

private:
    [[nodiscard]] static c10::cuda::CUDAStream stream_of(dist::cuda_stream on, dist::device where) {
        return c10::cuda::getStreamFromExternal(reinterpret_cast<cudaStream_t>(on),
                                                static_cast<c10::DeviceIndex>(where.index));
    }
};

} // namespace skein::train
