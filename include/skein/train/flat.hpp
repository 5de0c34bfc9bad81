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

#include <skein/core/check.hpp>
#include <skein/core/error.hpp>
#include <skein/core/fnv.hpp>
#include <skein/torch/torch.hpp>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include <malloc.h>
#include <sys/mman.h>

namespace skein::train {

// P elements of a flat buffer, padding included

/// Zeroed float32 storage straight from the system, given back when the last view is gone.
[[nodiscard]] inline at::Tensor make_flat_buffer(std::int64_t elements) {
    const auto bytes = static_cast<std::size_t>(elements > 0 ? elements : 1) * sizeof(float);
    void* memory =
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        throw error(errc::exhausted, fmt::format("no memory for a flat buffer of {} bytes", bytes))
            .with_hint("use a smaller model or a machine with more memory");
    ::madvise(memory, bytes, MADV_HUGEPAGE); // a wish: fewer page faults and TLB misses
    return at::from_blob(
        memory, {elements}, [bytes](void* p) { ::munmap(p, bytes); },
        at::TensorOptions().dtype(at::kFloat));
}

/// Lets the heap keep what a step frees, for the next step to take: training allocates the same large
/// blocks again and again, and giving them back to the system costs a page fault per 4 KiB each time
/// (measured: 4 % of a step of the GPT example). For the whole process; glibc only.
inline void keep_freed_memory() noexcept {
#if defined(__GLIBC__)
    ::mallopt(M_TRIM_THRESHOLD, 1 << 30);
    if (::mallopt(M_MMAP_THRESHOLD, 1 << 30) == 0)
        ::mallopt(M_MMAP_THRESHOLD, 32 << 20); // older glibc
#endif
}

/// The sum of the squares, in double and in an order that does not depend on the number of threads.
///   flat_P  float32, contiguous, on the CPU
/// Tensor::norm() adds float32 numbers in a few lanes: over 124 million gradients it is 1.3 % too small.
[[nodiscard]] inline double squared_norm(const at::Tensor& flat_P) {
    constexpr std::int64_t piece = 1 << 16, lanes = 16;
    const auto* all = static_cast<const float*>(flat_P.const_data_ptr());
    const std::int64_t size = flat_P.numel();
    std::vector<double> sums(static_cast<std::size_t>((size + piece - 1) / piece));
    at::parallel_for(0, static_cast<std::int64_t>(sums.size()), 1,
                     [&](std::int64_t first, std::int64_t last) {
                         for (auto s = first; s < last; ++s) {
                             const auto* x = all + s * piece;
                             const auto count = std::min(piece, size - s * piece);
                             double lane[lanes] = {};
                             std::int64_t i = 0;
                             for (; i + lanes <= count; i += lanes)
                                 for (std::int64_t k = 0; k < lanes; ++k) {
                                     const double v = x[i + k];
                                     lane[k] += v * v;
                                 }
                             for (; i < count; ++i) lane[0] += double(x[i]) * double(x[i]);
                             double sum = 0;
                             for (const double part : lane) sum += part;
                             sums[static_cast<std::size_t>(s)] = sum;
                         }
                     });
    double sum = 0;
    for (const double part : sums) sum += part;
    return sum;
}

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

class flat_storage;

namespace detail {
/// Runs after each parameter's gradient has been accumulated.
struct settle_hook : torch::autograd::FunctionPostHook {
    settle_hook(flat_storage& storage, std::size_t segment) : storage(&storage), segment(segment) {}
    torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                              const torch::autograd::variable_list&) override;
    flat_storage* storage;
    std::size_t segment;
};
} // namespace detail

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
    explicit flat_storage(torch::nn::Module& module) {
        at::NoGradGuard no_grad;
        collect(module);
        params_P_ = make_flat_buffer(size_);
        grads_P_ = make_flat_buffer(size_);
        for (auto& s : segments_) {
            const auto sizes = s.parameter.sizes().vec();
            auto view = params_P_.narrow(0, s.offset, s.count).view(sizes);
            view.copy_(s.parameter);
            s.parameter.set_data(view);
        }
        attach_gradients();
        for (std::size_t i = 0; i < segments_.size(); ++i) {
            auto node = torch::autograd::impl::grad_accumulator(segments_[i].parameter);
            const auto key = node->add_post_hook(std::make_unique<detail::settle_hook>(*this, i));
            hooks_.emplace_back(std::move(node), key);
        }
    }
    flat_storage(const flat_storage&) = delete;
    flat_storage& operator=(const flat_storage&) = delete;
    ~flat_storage() {
        for (auto& [node, key] : hooks_) node->del_post_hook(key);
    }

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
    [[nodiscard]] static at::Tensor view_of(const at::Tensor& flat_P, const flat_segment& s) {
        return flat_P.narrow(0, s.offset, s.count).view(s.parameter.sizes());
    }

    /// Before the first backward pass of a step: what the buffer holds is over.
    void expect_gradients() {
        for (auto& s : segments_) s.parameter.mutable_grad().reset();
    }
    /// After the last one: every parameter's grad is its view; zero for those no loss depended on.
    void settle_gradients() {
        for (std::size_t i = 0; i < segments_.size(); ++i) settle(i);
    }
    /// The same for one segment.
    void settle(std::size_t i) {
        at::NoGradGuard no_grad;
        auto& s = segments_[i];
        auto& grad = s.parameter.mutable_grad();
        if (grad.defined() && !grad.is_sparse() && grad.const_data_ptr() == place_of(s)) return;
        auto view = view_of(grads_P_, s);
        if (!grad.defined())
            view.zero_();
        else if (grad.is_sparse())
            view.zero_().add_(grad);
        else
            view.copy_(grad);
        grad = view;
    }

    /// Equal on two ranks exactly when names, shapes, order and what is trainable are equal.
    [[nodiscard]] std::uint64_t layout_hash() const {
        fnv1a h;
        const auto add = [&h](const std::string& name, const at::Tensor& t) {
            h.number(name.size());
            h.text(name);
            h.number(static_cast<std::uint64_t>(t.scalar_type()));
            for (auto n : t.sizes()) h.number(static_cast<std::uint64_t>(n));
        };
        h.number(segments_.size());
        for (auto& s : segments_) add(s.name, s.parameter);
        for (auto& f : fixed_) add(f.name, f.tensor);
        return h.value();
    }

private:
    void collect(torch::nn::Module& module) {
        std::unordered_map<const void*, std::string> seen;   // tensor objects: tied parameters
        std::unordered_map<const void*, std::string> memory; // data pointers: hidden aliases
        const auto named = module.named_parameters(true);
        for (const auto& item : named) {
            const auto& p = item.value();
            if (!p.defined() || !seen.emplace(p.unsafeGetTensorImpl(), item.key()).second) continue;
            if (!p.requires_grad()) {
                fixed_.push_back({item.key(), p, false});
                continue;
            }
            if (p.scalar_type() != at::kFloat || !p.device().is_cpu())
                throw error(errc::not_supported,
                            fmt::format("not supported: trainable parameter {} of type {} on {}",
                                        item.key(), c10::toString(p.scalar_type()),
                                        p.device().str()))
                    .with_hint("this version trains float32 parameters on the CPU");
            if (p.numel() > 0) {
                const auto [other, is_new] = memory.emplace(p.data_ptr(), item.key());
                if (!is_new)
                    throw error(
                        errc::not_supported,
                        fmt::format("not supported: parameters {} and {} are different tensors "
                                    "in the same memory",
                                    other->second, item.key()))
                        .with_hint("tie weights by using one tensor in both places");
            }
            segments_.push_back({item.key(), p, 0, p.numel(), 0});
        }
        for (const auto& item : module.named_buffers(true))
            if (item.value().defined()) fixed_.push_back({item.key(), item.value(), true});
        if (segments_.empty())
            throw error(errc::invalid_argument, "the model has no trainable parameter")
                .with_hint("is every parameter frozen, or was no submodule registered?");

        std::reverse(segments_.begin(), segments_.end());
        for (auto& s : segments_) {
            s.offset = size_;
            s.padded = (s.count + alignment - 1) / alignment * alignment;
            size_ += s.padded;
            trainable_ += s.count;
        }
    }

    void attach_gradients() {
        for (auto& s : segments_) {
            auto& grad = s.parameter.mutable_grad();
            if (!grad.defined() || grad.const_data_ptr() != place_of(s))
                grad = view_of(grads_P_, s);
        }
    }

    [[nodiscard]] const void* place_of(const flat_segment& s) const {
        return static_cast<const float*>(grads_P_.const_data_ptr()) + s.offset;
    }

    std::vector<flat_segment> segments_;
    std::vector<std::pair<std::shared_ptr<torch::autograd::Node>, std::uintptr_t>> hooks_;
    std::vector<fixed_tensor> fixed_;
    std::int64_t size_ = 0;
    std::int64_t trainable_ = 0;
    at::Tensor params_P_, grads_P_;
};

inline torch::autograd::variable_list detail::settle_hook::operator()(
    const torch::autograd::variable_list& outputs, const torch::autograd::variable_list&) {
    storage->settle(segment);
    return outputs;
}

} // namespace skein::train
