// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tensors as arguments, results and objects of tasks.
//
//     at::Tensor scaled(at::Tensor x, double by);               // travels as any value
//     auto weights = co_await skein::put(at::Tensor(model->weight.detach()));
//     double norm(skein::view<at::Tensor> w) { return w->norm().item<double>(); } // no byte copied
//
// A tensor is dense, contiguous and in the memory of a CPU: on another device, sparse, quantized or a
// strided part of another one it is refused, because what would travel is not what it looks like. One
// that requires a gradient is refused, too: its history stays behind, so detach() says that. A tensor
// without a type (at::Tensor()) travels as that.
//
// The tensor of a view lies over the memory of the store, which nobody may write to: an operation in
// place on it ends the process with SIGSEGV. clone() gives one of its own.

#include <skein/core/bytes.hpp>
#include <skein/core/result.hpp>
#include <skein/torch/tensor.hpp>
#include <skein/wire/codec.hpp>
#include <skein/wire/reader.hpp>
#include <skein/wire/writer.hpp>

#include <memory>

namespace skein::wire {

/// Bool, the whole numbers of 8 to 64 bits and uint8, f16, bf16, f32, f64 and complex numbers of f32
/// and f64; up to 64 dimensions. Elements begin at a multiple of
/// 64 bytes of what the writer has.
template <>
struct codec<at::Tensor> {
    static constexpr const char* schema = "tensor";
    ///   errors  not_supported: see above, with what to call
    static void encode(writer& to, const at::Tensor& tensor);
    ///   errors  malformed: an unknown type, sizes that do not agree with the bytes
    static result<void> decode(reader& from, at::Tensor& into);
    /// A tensor over the bytes of one message, which `keep` owns. Never written to. Its own copy where
    /// they do not lie as the type asks for.
    ///   errors  as decode
    static result<at::Tensor> in_place(byte_span message, std::shared_ptr<const void> keep);
};

} // namespace skein::wire

#if SKEIN_HEADER_ONLY
#include <skein/train/detail/tensor_message.ipp>
#endif
