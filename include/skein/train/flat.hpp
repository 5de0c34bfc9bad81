// SPDX-License-Identifier: Apache-2.0
#pragma once
// Flat storage: all trainable parameters of a module are views of one buffer, all gradients of another.
//
// Optimizer, clipping, gradient exchange and checkpoints then work on a few long arrays and not on
// hundreds of small tensors, without a copy in either direction. The module keeps its own Tensor
// objects (their data is re-pointed), so user code sees ordinary parameters.
//
// The order is the reverse of registration, about the order in which gradients become ready, so that
// a slice of the buffer is a bucket that can be sent while the rest of the backward pass runs. Every
// parameter starts at a multiple of 64 bytes; the padding stays zero.

#include <skein/torch/tensor.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace skein::train {

// P elements of a flat buffer, padding included

/// Zeroed float32 storage straight from the system, given back when the last view is gone.
[[nodiscard]] at::Tensor make_flat_buffer(std::int64_t elements);

/// Lets the heap keep what a step frees, for the next step to take: training allocates the same large
/// blocks again and again, and giving them back to the system costs a page fault per 4 KiB each time
/// (measured: 4 % of a step of the GPT example). For the whole process; glibc only.
void keep_freed_memory() noexcept;

/// The sum of the squares, in double and in an order that does not depend on the number of threads.
///   flat_P  float32, contiguous, on the CPU
/// Tensor::norm() adds float32 numbers in a few lanes: over 124 million gradients it is 1.3 % too small.
[[nodiscard]] double squared_norm(const at::Tensor& flat_P);

/// One trainable parameter inside the flat buffers.
struct flat_segment {
    std::string name;        ///< as in named_parameters(); of tied parameters the first
    at::Tensor parameter;    ///< the module's own tensor
    std::int64_t offset = 0; ///< elements; a multiple of flat_storage::alignment
    std::int64_t count = 0;  ///< elements of the parameter
    std::int64_t padded = 0; ///< elements up to the next segment
};

/// A tensor that is saved and broadcast but not trained: a frozen parameter or a buffer.
struct fixed_tensor {
    std::string name;
    at::Tensor tensor;
    bool is_buffer = false;
};

namespace detail {
struct settle_hook;
}

/// The flat parameters and gradients of one module. Not thread-safe.
///
/// A step: expect_gradients(); any number of backward passes; settle_gradients(). The first pass
/// hands over fresh gradients, which are copied into place while they are in the cache; later ones add
/// to the place itself.
class flat_storage {
public:
    static constexpr std::int64_t alignment = 16; // float32 elements

    /// Moves the module's trainable parameters into flat storage.
    ///   errors: errc::not_supported for a trainable parameter that is not float32 on the CPU, or for
    ///   two different parameters that share memory; errc::invalid_argument when nothing is trainable
    explicit flat_storage(torch::nn::Module& module);
    flat_storage(const flat_storage&) = delete;
    flat_storage& operator=(const flat_storage&) = delete;
    ~flat_storage();

    /// Elements of each buffer, padding included.
    [[nodiscard]] std::int64_t size() const noexcept { return size_; }
    /// Trainable elements, without padding.
    [[nodiscard]] std::int64_t trainable() const noexcept { return trainable_; }
    [[nodiscard]] const at::Tensor& params_P() const noexcept { return params_P_; }
    [[nodiscard]] const at::Tensor& grads_P() const noexcept { return grads_P_; }
    /// In buffer order.
    [[nodiscard]] const std::vector<flat_segment>& segments() const noexcept { return segments_; }
    [[nodiscard]] const std::vector<fixed_tensor>& fixed() const noexcept { return fixed_; }

    /// A flat tensor's part for one segment, in the parameter's shape.
    [[nodiscard]] static at::Tensor view_of(const at::Tensor& flat_P, const flat_segment& s);

    /// Before the first backward pass of a step: what the buffer holds is over.
    ///   errors  not_supported, by name, for a parameter that was frozen at construction and is trainable
    ///           now. One that was frozen since then is left out, as one that no loss depends on
    void expect_gradients();
    /// After the last one: every parameter's grad is its view; zero for those no loss depended on.
    void settle_gradients();
    /// By segment: 1 where some backward pass since expect_gradients() gave this rank a gradient.
    [[nodiscard]] const std::vector<double>& touched() const noexcept { return touched_; }
    /// Called with a segment's number when a backward pass has settled its gradient; one listener.
    void when_settled(std::function<void(std::size_t)> call) { settled_ = std::move(call); }

    /// Equal on two ranks exactly when names, shapes, order and what is trainable are equal.
    [[nodiscard]] std::uint64_t layout_hash() const;

private:
    friend struct detail::settle_hook;
    void collect(torch::nn::Module& module);
    void settle(std::size_t i);
    void passed(std::size_t i, bool has_gradient);
    void attach_gradients();
    [[nodiscard]] const void* place_of(const flat_segment& s) const;

    std::vector<flat_segment> segments_;
    std::vector<std::pair<std::shared_ptr<torch::autograd::Node>, std::uintptr_t>> hooks_;
    std::function<void(std::size_t)> settled_;
    std::vector<double> touched_;
    std::vector<fixed_tensor> fixed_;
    std::int64_t size_ = 0;
    std::int64_t trainable_ = 0;
    at::Tensor params_P_, grads_P_;
};

} // namespace skein::train

#if SKEIN_HEADER_ONLY
#include <skein/train/detail/flat.ipp>
#endif
