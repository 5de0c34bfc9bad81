// SPDX-License-Identifier: Apache-2.0
#pragma once
// AdamW and SGD over flat storage: a few fused kernel calls per step instead of several per parameter.
//
// Neighbouring parameters with the same weight decay form one run; ATen's fused kernels walk the runs
// once, reading and writing every element once, with clipping folded in as a gradient scale. Vectors
// (biases, norms) are not decayed unless asked for.
//
//     flat_optimizer opt(AdamW{.weight_decay = 0.1}, strategy.storage());
//     opt.step(lr, clip_scale(norm, 1.0));
//
//   source: Loshchilov and Hutter 2019 (arXiv 1711.05101); ATen native/FusedAdam.cpp, FusedSGD.cpp

#include <skein/core/error.hpp>
#include <skein/torch/torch.hpp>
#include <skein/train/flat.hpp>

#include <cmath>
#include <cstdint>
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

/// The optimizer of one rank over the flat storage it owns, which must outlive it.
class flat_optimizer {
public:
    flat_optimizer(optimizer_options options, flat_storage& storage)
        : options_(options), storage_(&storage) {
        check();
        const auto* adam = std::get_if<AdamW>(&options_);
        if (adam != nullptr) {
            states_.emplace_back("exp_avg", make_flat_buffer(storage.size()));
            states_.emplace_back("exp_avg_sq", make_flat_buffer(storage.size()));
        } else if (std::get<SGD>(options_).momentum != 0.0) {
            states_.emplace_back("momentum", make_flat_buffer(storage.size()));
        }
        make_runs(adam ? adam->decay_vectors : std::get<SGD>(options_).decay_vectors);
    }

    /// One update from storage.grads_P(), divided by grad_scale on the way (and left divided).
    void step(double lr, double grad_scale = 1.0) {
        at::NoGradGuard no_grad;
        steps_ += 1;
        std::optional<at::Tensor> scale;
        if (grad_scale != 1.0) scale = at::scalar_tensor(grad_scale, at::kFloat);
        for (auto& group : groups_) {
            if (group.params.empty()) continue;
            if (const auto* adam = std::get_if<AdamW>(&options_)) {
                // The kernel's bias correction wants the number of this step, from 1.
                const auto count = at::scalar_tensor(static_cast<double>(steps_), at::kFloat);
                const std::vector<at::Tensor> counts(group.params.size(), count);
                at::_fused_adamw_(group.params, group.grads, group.states[0], group.states[1], {},
                                  counts, lr, adam->beta1, adam->beta2,
                                  group.decay ? adam->weight_decay : 0.0, adam->eps,
                                  /*amsgrad=*/false, /*maximize=*/false, scale);
            } else {
                const auto& sgd = std::get<SGD>(options_);
                const at::TensorList momentum =
                    group.states.empty() ? at::TensorList() : at::TensorList(group.states[0]);
                // Zeroed momentum without dampening makes the first step like any other.
                at::_fused_sgd_(group.params, group.grads, momentum,
                                group.decay ? sgd.weight_decay : 0.0, sgd.momentum, lr,
                                /*dampening=*/0.0, sgd.nesterov, /*maximize=*/false,
                                /*is_first_step=*/false, scale);
            }
        }
    }

    [[nodiscard]] std::uint64_t steps() const noexcept { return steps_; }
    void set_steps(std::uint64_t finished) noexcept { steps_ = finished; }
    [[nodiscard]] std::string name() const { return options_.index() == 0 ? "adamw" : "sgd"; }
    [[nodiscard]] const optimizer_options& options() const noexcept { return options_; }
    /// Flat state buffers by name, in the layout of the storage: for checkpoints.
    [[nodiscard]] const std::vector<std::pair<std::string, at::Tensor>>& states() const noexcept {
        return states_;
    }

private:
    struct group {
        bool decay = false;
        std::vector<at::Tensor> params, grads;
        std::vector<std::vector<at::Tensor>> states;
    };

    void check() const {
        const auto refuse = [](std::string what) { throw error(errc::usage, std::move(what)); };
        const auto fraction = [](double x) { return x >= 0.0 && x < 1.0; };
        if (const auto* adam = std::get_if<AdamW>(&options_)) {
            if (!fraction(adam->beta1) || !fraction(adam->beta2))
                refuse(fmt::format("AdamW betas {} and {} are not in [0, 1)", adam->beta1,
                                   adam->beta2));
            if (!(adam->eps > 0) || !(adam->weight_decay >= 0))
                refuse(fmt::format("AdamW eps {} or weight decay {} is negative", adam->eps,
                                   adam->weight_decay));
            return;
        }
        const auto& sgd = std::get<SGD>(options_);
        if (!fraction(sgd.momentum))
            refuse(fmt::format("SGD momentum {} is not in [0, 1)", sgd.momentum));
        if (sgd.nesterov && sgd.momentum == 0.0) refuse("SGD with nesterov needs a momentum");
        if (!(sgd.weight_decay >= 0)) refuse("SGD weight decay is negative");
    }

    void make_runs(bool decay_vectors) {
        groups_[0].decay = true;
        for (auto& g : groups_) g.states.resize(states_.size());
        const auto& segments = storage_->segments();
        const auto decays = [&](const flat_segment& s) {
            return decay_vectors || s.parameter.dim() >= 2;
        };
        for (std::size_t i = 0; i < segments.size();) {
            auto end = i;
            while (end < segments.size() && decays(segments[end]) == decays(segments[i])) ++end;
            const auto begin = segments[i].offset;
            const auto count = segments[end - 1].offset + segments[end - 1].padded - begin;
            auto& g = groups_[decays(segments[i]) ? 0 : 1];
            g.params.push_back(storage_->params_P().narrow(0, begin, count));
            g.grads.push_back(storage_->grads_P().narrow(0, begin, count));
            for (std::size_t k = 0; k < states_.size(); ++k)
                g.states[k].push_back(states_[k].second.narrow(0, begin, count));
            i = end;
        }
    }

    optimizer_options options_;
    flat_storage* storage_;
    std::vector<std::pair<std::string, at::Tensor>> states_;
    group groups_[2]; // decayed, not decayed
    std::uint64_t steps_ = 0;
};

} // namespace skein::train
