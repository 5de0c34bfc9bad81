// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/train/offload.hpp>.

#include <skein/core/error.hpp>
#include <skein/core/posix_disk.hpp>
#include <skein/torch/engine.hpp>
#include <skein/torch/torch.hpp>
#include <skein/train/unit.hpp>

#include <atomic>
#include <map>
#include <mutex>
#include <span>
#include <utility>

#include <malloc.h>
#include <unistd.h>

#include <fmt/core.h>

namespace skein::train {

SKEIN_INLINE stored_tensor::~stored_tensor() = default;
SKEIN_INLINE activation_store::~activation_store() = default;

SKEIN_INLINE void activation_store::moved(std::size_t bytes) {
    // What was freed lies between small blocks that live on, where glibc's heap gives aligned
    // requests no place; only trimming gives its pages back. The price is a page fault each when
    // they are used again.
    constexpr std::size_t often = std::size_t{32} << 20;
    since_trim_ += bytes;
    if (since_trim_ < often) return;
    since_trim_ = 0;
#if defined(__GLIBC__)
    ::malloc_trim(0);
#endif
}

SKEIN_INLINE void activation_store::protect(const torch::nn::Module& model) {
    const auto add = [this](const at::Tensor& t) {
        if (!t.defined() || !t.has_storage() || t.requires_grad()) return;
        if (protected_.insert(t.storage().unsafeGetStorageImpl()).second)
            held_.push_back(t.detach());
    };
    for (const auto& p : model.parameters()) add(p);
    for (const auto& b : model.buffers()) add(b);
}

SKEIN_INLINE bool activation_store::is_protected(const at::Tensor& tensor) const {
    return protected_.contains(tensor.storage().unsafeGetStorageImpl());
}

namespace detail {

/// A file whose ranges are given out and taken back. Removed at once: it lives as long as it is
/// open.
class scratch_file {
public:
    explicit scratch_file(const std::string& folder) {
        static std::atomic<int> made{0};
        posix_disk disk;
        disk.make_dirs(folder).value();
        const auto path = join_path(
            folder, fmt::format(".skein-activations-{}-{}", ::getpid(), made.fetch_add(1)));
        file_ = disk.open(path, open_mode::create_new).value();
        disk.remove(path).value();
    }

    [[nodiscard]] std::uint64_t write(byte_span bytes) {
        std::uint64_t at = 0;
        {
            const std::lock_guard lock(mutex_);
            used_ += bytes.size();
            at = take(bytes.size());
        }
        if (auto written = file_->write_at(at, bytes); !written) {
            give_back(at, bytes.size());
            throw written.error();
        }
        return at;
    }
    void read(std::uint64_t at, mut_byte_span into) {
        if (file_->read_at(at, into).value() != into.size())
            throw error(errc::io, "the file of activations is shorter than what was put there");
    }
    void give_back(std::uint64_t at, std::size_t bytes) {
        const std::lock_guard lock(mutex_);
        used_ -= bytes;
        free_.emplace(bytes, at);
    }
    [[nodiscard]] std::int64_t used() const {
        const std::lock_guard lock(mutex_);
        return static_cast<std::int64_t>(used_);
    }

private:
    /// Steps save tensors of the same sizes again and again: one of the very size, or new memory.
    std::uint64_t take(std::size_t bytes) {
        if (const auto fits = free_.find(bytes); fits != free_.end()) {
            const auto at = fits->second;
            free_.erase(fits);
            return at;
        }
        return std::exchange(end_, end_ + bytes);
    }

    std::unique_ptr<file> file_;
    mutable std::mutex mutex_;
    std::multimap<std::size_t, std::uint64_t> free_;
    std::uint64_t end_ = 0, used_ = 0;
};

/// Its numbers one behind the other: in the order of the memory where that has no holes, else of
/// the indices.
SKEIN_INLINE at::Tensor packed(const at::Tensor& t) {
    if (t.is_non_overlapping_and_dense()) return t.as_strided({t.numel()}, {1});
    return t.contiguous().view({t.numel()});
}
SKEIN_INLINE at::Tensor unpacked(const at::Tensor& flat, const at::Tensor& into) {
    if (into.is_non_overlapping_and_dense())
        into.as_strided({into.numel()}, {1}).copy_(flat);
    else
        into.copy_(flat.view(into.sizes()));
    return into;
}

class tensor_in_file final : public stored_tensor {
public:
    tensor_in_file(std::shared_ptr<scratch_file> file, const at::Tensor& t)
        : file_(std::move(file)), sizes_(t.sizes().vec()), strides_(t.strides().vec()),
          options_(t.options()) {
        const auto flat = packed(t);
        bytes_ = flat.nbytes();
        at_ = file_->write({static_cast<const std::byte*>(flat.const_data_ptr()), bytes_});
    }
    ~tensor_in_file() override { file_->give_back(at_, bytes_); }

    [[nodiscard]] at::Tensor load() const override {
        auto out = at::empty_strided(sizes_, strides_, options_);
        const bool whole = out.is_non_overlapping_and_dense();
        auto flat = whole ? out.as_strided({out.numel()}, {1}) : at::empty(out.numel(), options_);
        file_->read(at_, {static_cast<std::byte*>(flat.mutable_data_ptr()), bytes_});
        return whole ? out : unpacked(flat, out);
    }

private:
    std::shared_ptr<scratch_file> file_;
    std::vector<std::int64_t> sizes_, strides_;
    at::TensorOptions options_;
    std::uint64_t at_ = 0;
    std::size_t bytes_ = 0;
};

class file_store final : public activation_store {
public:
    file_store(const std::string& folder, std::size_t at_least)
        : activation_store(at_least), file_(std::make_shared<scratch_file>(folder)) {}
    std::unique_ptr<stored_tensor> put(const at::Tensor& t) override {
        tensors_ += 1;
        return std::make_unique<tensor_in_file>(file_, t);
    }
    [[nodiscard]] std::int64_t bytes() const override { return file_->used(); }
    [[nodiscard]] std::int64_t tensors() const override { return tensors_; }

private:
    std::shared_ptr<scratch_file> file_;
    std::atomic<std::int64_t> tensors_{0};
};

class tensor_as_bf16 final : public stored_tensor {
public:
    tensor_as_bf16(std::shared_ptr<std::atomic<std::int64_t>> bytes, const at::Tensor& t)
        : all_(std::move(bytes)), sizes_(t.sizes().vec()), strides_(t.strides().vec()),
          flat_(packed(t).to(at::kBFloat16)) {
        *all_ += static_cast<std::int64_t>(flat_.nbytes());
    }
    ~tensor_as_bf16() override { *all_ -= static_cast<std::int64_t>(flat_.nbytes()); }
    [[nodiscard]] at::Tensor load() const override {
        return unpacked(flat_, at::empty_strided(sizes_, strides_, at::kFloat));
    }

private:
    std::shared_ptr<std::atomic<std::int64_t>> all_;
    std::vector<std::int64_t> sizes_, strides_;
    at::Tensor flat_;
};

class bf16_store final : public activation_store {
public:
    using activation_store::activation_store;
    std::unique_ptr<stored_tensor> put(const at::Tensor& t) override {
        if (t.scalar_type() != at::kFloat) return nullptr;
        tensors_ += 1;
        return std::make_unique<tensor_as_bf16>(bytes_, t);
    }
    [[nodiscard]] std::int64_t bytes() const override { return *bytes_; }
    [[nodiscard]] std::int64_t tensors() const override { return tensors_; }

private:
    std::shared_ptr<std::atomic<std::int64_t>> bytes_ =
        std::make_shared<std::atomic<std::int64_t>>(0);
    std::atomic<std::int64_t> tensors_{0};
};

/// Of this thread.
SKEIN_INLINE std::shared_ptr<activation_store>& current_store() {
    thread_local std::shared_ptr<activation_store> store;
    return store;
}

/// What autograd has in the place of one saved tensor.
class offload_hooks final : public torch::autograd::SavedVariableHooks {
public:
    explicit offload_hooks(std::shared_ptr<activation_store> store) : store_(std::move(store)) {}

    void call_pack_hook(const at::Tensor& t) override {
        const at::NoGradGuard no_grad;
        if (moves(t)) stored_ = store_->put(t.detach());
        if (stored_) return store_->moved(t.nbytes());
        // A leaf keeps no graph alive; anything else may be a result of the node that saves it.
        kept_ = t.is_leaf() ? t : t.detach();
        version_ = t._version();
    }
    at::Tensor call_unpack_hook() override {
        const at::NoGradGuard no_grad;
        if (stored_) return stored_->load();
        if (kept_._version() != version_)
            throw error(errc::invalid_argument,
                        "a tensor that the backward pass needs was changed in place");
        return kept_;
    }

private:
    [[nodiscard]] bool moves(const at::Tensor& t) const {
        if (!t.has_storage() || t.is_sparse() || !t.device().is_cpu() ||
            t.nbytes() < store_->at_least() || t.is_conj() || t.is_neg())
            return false;
        const auto& base = t.is_view() ? t._base() : t;
        if (base.is_leaf() && base.requires_grad()) return false; // a parameter
        for (std::int64_t i = 0; i < t.dim(); ++i)
            if (t.stride(i) == 0 && t.size(i) > 1) return false;
        return !store_->is_protected(t);
    }

    std::shared_ptr<activation_store> store_;
    std::unique_ptr<stored_tensor> stored_;
    at::Tensor kept_;
    std::int64_t version_ = 0;
};

/// The engine that C++ has, and hooks for what is saved: it asks its engine for them.
struct hooked_engine final : torch::autograd::Engine {
    std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks()
        override {
        const auto& store = current_store();
        return store ? std::make_unique<offload_hooks>(store) : nullptr;
    }
    static Engine& get() {
        static auto* const engine = new hooked_engine; // as the engine it stands for: never ends
        return *engine;
    }
};

SKEIN_INLINE void use_hooked_engine() {
    static std::once_flag once;
    std::call_once(once, [] { torch::autograd::set_default_engine_stub(&hooked_engine::get); });
}

} // namespace detail

SKEIN_INLINE std::shared_ptr<activation_store> offload_to_file(const std::string& folder,
                                                               std::size_t at_least) {
    return std::make_shared<detail::file_store>(folder, at_least);
}
SKEIN_INLINE std::shared_ptr<activation_store> offload_as_bf16(std::size_t at_least) {
    return std::make_shared<detail::bf16_store>(at_least);
}

SKEIN_INLINE offload_scope::offload_scope(const std::shared_ptr<activation_store>& store)
    : before_(std::exchange(detail::current_store(), store)) {
    if (store) detail::use_hooked_engine();
}
SKEIN_INLINE offload_scope::offload_scope(const std::shared_ptr<activation_store>& store,
                                          const torch::nn::Module& model)
    : offload_scope(store) {
    if (store) store->protect(model);
}
SKEIN_INLINE offload_scope::~offload_scope() { detail::current_store() = std::move(before_); }

SKEIN_INLINE std::size_t offload_activations(torch::nn::Module& model,
                                             std::shared_ptr<activation_store> store,
                                             const block_filter& which) {
    if (store) store->protect(model);
    std::size_t units = 0, chosen = 0;
    for (const auto& item : model.named_modules(std::string(), /*include_self=*/false)) {
        auto* const mark = dynamic_cast<unit_mark*>(item.value().get());
        if (mark == nullptr) continue;
        units += 1;
        const bool yes = store && (!which || which(item.key()));
        mark->offload(yes ? store : nullptr);
        chosen += yes ? 1 : 0;
    }
    if (units == 0)
        throw error(errc::invalid_argument,
                    "the model has no skein::unit whose activations to move")
            .with_hint("declare its blocks with TORCH_MODULE_IMPL(Block, skein::unit<BlockImpl>)");
    return chosen;
}

namespace detail {
SKEIN_INLINE std::shared_ptr<activation_store> exchange_store(
    std::shared_ptr<activation_store> store) {
    if (store) use_hooked_engine();
    return std::exchange(current_store(), std::move(store));
}
} // namespace detail

} // namespace skein::train
