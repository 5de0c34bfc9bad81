// SPDX-License-Identifier: Apache-2.0
#pragma once
// Activation offload and compression: what a forward pass keeps for the backward pass lies in a
// file meanwhile, or takes half the bytes.
//
//     auto store = skein::train::offload_to_file("/var/tmp");        // the same bits
//     auto store = skein::train::offload_as_bf16();                  // half the memory
//     // in its blocks, which are skein::unit
//     skein::train::offload_activations(*model, store);
//     // or: whatever is saved in this scope
//     const skein::train::offload_scope here(store, *model);
//
// Autograd asks for hooks whenever it saves a tensor; these move it out and, when the backward pass
// wants it, back in. Together with checkpoint_activations() it is the inputs of the blocks that
// move. Parameters, buffers, small tensors (below 4 KiB) and expanded ones stay where they are, and
// so do tensors that are no float32 under bf16.
//
//   source: saved-tensor hooks as torch.autograd.graph.saved_tensors_hooks and save_on_cpu;
//   Rhu et al. 2016 (arXiv 1602.08124)

#include <skein/torch/tensor.hpp>
#include <skein/train/recompute.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

namespace skein::train {

/// A tensor that has been put away.
class stored_tensor {
public:
    virtual ~stored_tensor();
    /// Its values again, in the shape and strides that it had. May be called more than once.
    [[nodiscard]] virtual at::Tensor load() const = 0;
};

/// Where tensors are put away, and which are not. Used by several threads at once.
class activation_store {
public:
    /// Smaller tensors stay where they are.
    explicit activation_store(std::size_t at_least) noexcept : at_least_(at_least) {}
    activation_store(const activation_store&) = delete;
    activation_store& operator=(const activation_store&) = delete;
    virtual ~activation_store();

    /// Null: it stays where it is.
    ///   errors  of the disk
    [[nodiscard]] virtual std::unique_ptr<stored_tensor> put(const at::Tensor& tensor) = 0;
    /// Bytes that are put away at the moment, as they are stored; and tensors since the beginning.
    [[nodiscard]] virtual std::int64_t bytes() const = 0;
    [[nodiscard]] virtual std::int64_t tensors() const = 0;

    /// The frozen parameters and buffers of a model never move. Trainable parameters are known
    /// without. Not while another thread uses the store.
    void protect(const torch::nn::Module& model);
    [[nodiscard]] bool is_protected(const at::Tensor& tensor) const;
    [[nodiscard]] std::size_t at_least() const noexcept { return at_least_; }
    /// After so many bytes were put away: now and then the heap gives back what was theirs.
    void moved(std::size_t bytes);

private:
    std::size_t at_least_;
    std::atomic<std::size_t> since_trim_{0};
    std::unordered_set<const void*> protected_; // storages
    std::vector<at::Tensor> held_;              // so that nothing else gets their addresses
};

/// A file without a name in this folder, on whose disk there is space for the activations; it goes
/// with the store.
///   errors  of the disk
///   at_least  bytes of a tensor that is worth it
[[nodiscard]] std::shared_ptr<activation_store> offload_to_file(const std::string& folder,
                                                                std::size_t at_least = 4096);

/// In memory, rounded to bfloat16: each number is off by at most 2^-8 of itself, and a gradient
/// that is a product with it likewise, |x' g - x g| <= 2^-8 |x| |g|.
[[nodiscard]] std::shared_ptr<activation_store> offload_as_bf16(std::size_t at_least = 4096);

/// While it lives, tensors that autograd saves on this thread go to the store; null: none does.
/// Scopes nest. Not for a process in which Python runs autograd: there its engine has hooks of its
/// own.
class offload_scope {
public:
    explicit offload_scope(const std::shared_ptr<activation_store>& store);
    offload_scope(const std::shared_ptr<activation_store>& store, const torch::nn::Module& model);
    offload_scope(const offload_scope&) = delete;
    offload_scope& operator=(const offload_scope&) = delete;
    ~offload_scope();

private:
    std::shared_ptr<activation_store> before_;
};

/// From now on blocks that are skein::unit save their activations there; null: nowhere.
///   which    by name; all when empty
///   returns  how many do
///   errors   invalid_argument when the model has no skein::unit
std::size_t offload_activations(torch::nn::Module& model, std::shared_ptr<activation_store> store,
                                const block_filter& which = {});

} // namespace skein::train

#if SKEIN_HEADER_ONLY
#include <skein/train/detail/offload.ipp>
#endif
