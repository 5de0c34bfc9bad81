// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/train/flat.hpp>.

#include <skein/core/error.hpp>
#include <skein/core/fnv.hpp>
#include <skein/torch/torch.hpp>

#include <algorithm>
#include <unordered_map>

#include <malloc.h>
#include <sys/mman.h>

#include <fmt/core.h>

namespace skein::train {

SKEIN_INLINE at::Tensor make_flat_buffer(std::int64_t elements) {
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

SKEIN_INLINE void keep_freed_memory() noexcept {
#if defined(__GLIBC__)
    ::mallopt(M_TRIM_THRESHOLD, 1 << 30);
    if (::mallopt(M_MMAP_THRESHOLD, 1 << 30) == 0)
        ::mallopt(M_MMAP_THRESHOLD, 32 << 20); // older glibc
#endif
}

SKEIN_INLINE double squared_norm(const at::Tensor& flat_P) {
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

namespace detail {
/// Runs after each parameter's gradient has been accumulated. The only hook on its node, so that what
/// has to follow (when_settled) does not depend on the order in which hooks were registered.
struct settle_hook : torch::autograd::FunctionPostHook {
    settle_hook(flat_storage& storage, std::size_t segment) : storage(&storage), segment(segment) {}
    torch::autograd::variable_list operator()(
        const torch::autograd::variable_list& outputs,
        const torch::autograd::variable_list& gradients) override {
        storage->passed(segment, !gradients.empty() && gradients[0].defined());
        return outputs;
    }
    flat_storage* storage;
    std::size_t segment;
};
} // namespace detail

SKEIN_INLINE flat_storage::flat_storage(torch::nn::Module& module) {
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
    touched_.assign(segments_.size(), 0.0);
    for (std::size_t i = 0; i < segments_.size(); ++i) {
        auto node = torch::autograd::impl::grad_accumulator(segments_[i].parameter);
        const auto key = node->add_post_hook(std::make_unique<detail::settle_hook>(*this, i));
        hooks_.emplace_back(std::move(node), key);
    }
}

SKEIN_INLINE flat_storage::~flat_storage() {
    for (auto& [node, key] : hooks_) node->del_post_hook(key);
}

SKEIN_INLINE at::Tensor flat_storage::view_of(const at::Tensor& flat_P, const flat_segment& s) {
    return flat_P.narrow(0, s.offset, s.count).view(s.parameter.sizes());
}

SKEIN_INLINE void flat_storage::expect_gradients() {
    for (auto& s : segments_) s.parameter.mutable_grad().reset();
    touched_.assign(segments_.size(), 0.0);
    for (const auto& f : fixed_)
        if (!f.is_buffer && f.tensor.requires_grad())
            throw error(
                errc::not_supported,
                fmt::format("not supported: parameter {} was frozen when the training began "
                            "and is trainable now",
                            f.name))
                .with_hint("unfreeze it before fit(), or start another fit()");
}

SKEIN_INLINE void flat_storage::settle_gradients() {
    for (std::size_t i = 0; i < segments_.size(); ++i) settle(i);
}

SKEIN_INLINE void flat_storage::passed(std::size_t i, bool has_gradient) {
    if (has_gradient) touched_[i] = 1.0;
    settle(i);
    if (settled_) settled_(i);
}

SKEIN_INLINE void flat_storage::settle(std::size_t i) {
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

SKEIN_INLINE std::uint64_t flat_storage::layout_hash() const {
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

SKEIN_INLINE void flat_storage::collect(torch::nn::Module& module) {
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
                                    item.key(), c10::toString(p.scalar_type()), p.device().str()))
                .with_hint("this version trains float32 parameters on the CPU");
        if (p.numel() > 0) {
            const auto [other, is_new] = memory.emplace(p.data_ptr(), item.key());
            if (!is_new)
                throw error(errc::not_supported,
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

SKEIN_INLINE void flat_storage::attach_gradients() {
    for (auto& s : segments_) {
        auto& grad = s.parameter.mutable_grad();
        if (!grad.defined() || grad.const_data_ptr() != place_of(s)) grad = view_of(grads_P_, s);
    }
}

SKEIN_INLINE const void* flat_storage::place_of(const flat_segment& s) const {
    return static_cast<const float*>(grads_P_.const_data_ptr()) + s.offset;
}

} // namespace skein::train
