// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/train/optimizer.hpp>.

#include <skein/core/error.hpp>
#include <skein/torch/torch.hpp>

#include <optional>

#include <fmt/core.h>

namespace skein::train {

SKEIN_INLINE flat_optimizer::flat_optimizer(optimizer_options options, flat_storage& storage)
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

SKEIN_INLINE void flat_optimizer::step(double lr, double grad_scale) {
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

SKEIN_INLINE std::string flat_optimizer::name() const {
    return options_.index() == 0 ? "adamw" : "sgd";
}

SKEIN_INLINE void flat_optimizer::check() const {
    const auto refuse = [](std::string what) { throw error(errc::usage, std::move(what)); };
    const auto fraction = [](double x) { return x >= 0.0 && x < 1.0; };
    if (const auto* adam = std::get_if<AdamW>(&options_)) {
        if (!fraction(adam->beta1) || !fraction(adam->beta2))
            refuse(
                fmt::format("AdamW betas {} and {} are not in [0, 1)", adam->beta1, adam->beta2));
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

SKEIN_INLINE void flat_optimizer::make_runs(bool decay_vectors) {
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

} // namespace skein::train
