// SPDX-License-Identifier: Apache-2.0
#pragma once
// AdamW and SGD over a flat store: a few fused kernel calls per step instead of several per parameter.
//
// Neighbouring parameters with the same weight decay form one run; ATen's fused kernels walk the runs
// once, reading and writing every element once, with clipping folded in as a gradient scale. Vectors
// (biases, norms) are not decayed unless asked for.
//
//     flat_optimizer opt(AdamW{.weight_decay = 0.1}, strategy.store());
//     opt.step(lr, clip_scale(norm, 1.0));
//
//   source: Loshchilov and Hutter 2019 (arXiv 1711.05101); ATen native/FusedAdam.cpp, FusedSGD.cpp

#include <skein/torch/tensor.hpp>
#include <skein/train/flat.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace skein {

/// Adam with decoupled weight decay. The learning rate comes from the schedule.
struct AdamW {
    double beta1 = 0.9;
    double beta2 = 0.999;
    double eps = 1e-8;
    double weight_decay = 0.01;
    bool decay_vectors = false; ///< also decay parameters of fewer than 2 dimensions
};

/// Stochastic gradient descent. The learning rate comes from the schedule.
struct SGD {
    double momentum = 0.0;
    bool nesterov = false;
    double weight_decay = 0.0;
    bool decay_vectors = false;
};

} // namespace skein

namespace skein::train {

using optimizer_options = std::variant<AdamW, SGD>;

/// The global norm of the gradients, and what it means for the step.
struct gradient_norm {
    double norm = 0.0;
    double scale = 1.0; ///< gradients are divided by it
};

/// As torch's clip_grad_norm_: gradients longer than `limit` are brought to that length; 0 = never.
[[nodiscard]] inline gradient_norm clip_to(double norm, double limit) noexcept {
    if (limit <= 0 || !(norm + 1e-6 > limit)) return {norm, 1.0};
    return {norm, (norm + 1e-6) / limit};
}

/// The optimizer of one rank over what it owns of a store, which must outlive it.
class flat_optimizer {
public:
    flat_optimizer(optimizer_options options, flat_store& store);

    /// One update from the owned gradients, divided by grad_scale on the way (and left divided).
    ///   present  by segment of the store: 0 where no rank had a gradient. Such a parameter is left
    ///            as it is, decay and state too, as torch.optim does with a grad of None; empty: all had
    void step(double lr, double grad_scale = 1.0, std::span<const double> present = {});

    [[nodiscard]] std::uint64_t steps() const noexcept { return steps_; }
    void set_steps(std::uint64_t finished) noexcept { steps_ = finished; }
    /// By segment: in how many of the steps it was left out. Empty: none ever was.
    [[nodiscard]] const std::vector<std::uint64_t>& left_out() const noexcept { return left_out_; }
    void set_left_out(std::vector<std::uint64_t> steps);
    [[nodiscard]] std::string name() const;
    [[nodiscard]] const optimizer_options& options() const noexcept { return options_; }
    /// State buffers by name, store.owned() elements each, in the owned layout: for checkpoints.
    [[nodiscard]] const std::vector<std::pair<std::string, at::Tensor>>& states() const noexcept {
        return states_;
    }

private:
    /// Neighbours that take the same update, as one long tensor each.
    struct group {
        bool decay = false;
        std::uint64_t left_out = 0;
        std::vector<at::Tensor> params, grads;
        std::vector<std::vector<at::Tensor>> states;
    };

    void check() const;
    [[nodiscard]] bool decays(const flat_segment& s) const;
    [[nodiscard]] std::vector<group> make_groups(std::span<const double> present) const;
    void update(group& g, double lr, const at::Tensor& grad_scale);

    optimizer_options options_;
    flat_store* store_;
    std::vector<std::pair<std::string, at::Tensor>> states_;
    std::vector<group> groups_; // while no parameter is or was left out
    std::vector<std::uint64_t> left_out_;
    std::uint64_t steps_ = 0;
};

} // namespace skein::train

#if SKEIN_HEADER_ONLY
#include <skein/train/detail/optimizer.ipp>
#endif
