// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/train/optimizer.hpp>.

#include <skein/core/error.hpp>
#include <skein/torch/torch.hpp>

#include <algorithm>
#include <optional>

#include <fmt/core.h>

namespace skein::train {

SKEIN_INLINE flat_optimizer::flat_optimizer(optimizer_options options, flat_store& store)
    : options_(options), store_(&store) {
    check();
    const auto* adam = std::get_if<AdamW>(&options_);
    if (adam != nullptr) {
        states_.emplace_back("exp_avg", make_flat_buffer(store.owned()));
        states_.emplace_back("exp_avg_sq", make_flat_buffer(store.owned()));
    } else if (std::get<SGD>(options_).momentum != 0.0) {
        states_.emplace_back("momentum", make_flat_buffer(store.owned()));
    }
    groups_ = make_groups({});
}

SKEIN_INLINE void flat_optimizer::step(double lr, double grad_scale,
                                       std::span<const double> present) {
    at::NoGradGuard no_grad;
    steps_ += 1;
    const bool all = std::ranges::all_of(present, [](double p) { return p != 0.0; });
    if (!all && left_out_.empty()) left_out_.assign(store_->segments().size(), 0);
    at::Tensor scale;
    if (grad_scale != 1.0) scale = at::scalar_tensor(grad_scale, at::kFloat);
    if (left_out_.empty()) {
        for (auto& g : groups_) update(g, lr, scale);
        return;
    }
    for (std::size_t i = 0; i < present.size(); ++i)
        if (present[i] == 0.0) left_out_[i] += 1;
    auto groups = make_groups(present);
    for (auto& g : groups) update(g, lr, scale);
}

SKEIN_INLINE void flat_optimizer::update(group& g, double lr, const at::Tensor& grad_scale) {
    const auto scale = grad_scale.defined() ? std::optional(grad_scale) : std::nullopt;
    if (const auto* adam = std::get_if<AdamW>(&options_)) {
        // The kernel's bias correction wants the number of this step, from 1.
        const auto count = at::scalar_tensor(static_cast<double>(steps_ - g.left_out), at::kFloat);
        const std::vector<at::Tensor> counts(g.params.size(), count);
        at::_fused_adamw_(g.params, g.grads, g.states[0], g.states[1], {}, counts, lr, adam->beta1,
                          adam->beta2, g.decay ? adam->weight_decay : 0.0, adam->eps,
                          /*amsgrad=*/false, /*maximize=*/false, scale);
        return;
    }
    const auto& sgd = std::get<SGD>(options_);
    const at::TensorList momentum =
        g.states.empty() ? at::TensorList() : at::TensorList(g.states[0]);
    // Zeroed momentum without dampening makes the first step like any other.
    at::_fused_sgd_(g.params, g.grads, momentum, g.decay ? sgd.weight_decay : 0.0, sgd.momentum, lr,
                    /*dampening=*/0.0, sgd.nesterov, /*maximize=*/false,
                    /*is_first_step=*/false, scale);
}

SKEIN_INLINE void flat_optimizer::set_left_out(std::vector<std::uint64_t> steps) {
    const bool none = std::ranges::all_of(steps, [](std::uint64_t n) { return n == 0; });
    left_out_ = none ? std::vector<std::uint64_t>() : std::move(steps);
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

SKEIN_INLINE bool flat_optimizer::decays(const flat_segment& s) const {
    const auto* adam = std::get_if<AdamW>(&options_);
    return s.shape.size() >= 2 ||
           (adam != nullptr ? adam->decay_vectors : std::get<SGD>(options_).decay_vectors);
}

/// Neighbours of equal decay, and equally often left out, form one run; runs of a kind form a group.
SKEIN_INLINE std::vector<flat_optimizer::group> flat_optimizer::make_groups(
    std::span<const double> present) const {
    const auto& segments = store_->segments();
    const auto& pieces = store_->pieces();
    const auto absent = [&](std::size_t i) { return !present.empty() && present[i] == 0.0; };
    const auto missed = [&](std::size_t i) { return left_out_.empty() ? 0 : left_out_[i]; };
    std::vector<group> groups;
    const auto group_of = [&](std::size_t i) -> group& {
        const bool decay = decays(segments[i]);
        for (auto& g : groups)
            if (g.decay == decay && g.left_out == missed(i)) return g;
        groups.push_back({decay, missed(i), {}, {}, {}});
        groups.back().states.resize(states_.size());
        return groups.back();
    };
    const auto alike = [&](const owned_piece& a, const owned_piece& b) {
        const auto i = a.segment, k = b.segment;
        return a.flat + a.padded == b.flat && a.at + a.padded == b.at &&
               decays(segments[k]) == decays(segments[i]) && absent(k) == absent(i) &&
               missed(k) == missed(i);
    };
    for (std::size_t i = 0; i < pieces.size();) {
        auto run = pieces[i]; // with all behind it that take the same update
        auto end = i + 1;
        for (; end < pieces.size() && alike(pieces[end - 1], pieces[end]); ++end)
            run.padded += pieces[end].padded;
        if (!absent(run.segment)) {
            auto& g = group_of(run.segment);
            g.params.push_back(store_->params_P().narrow(0, run.flat, run.padded));
            g.grads.push_back(store_->own_grads(run));
            for (std::size_t k = 0; k < states_.size(); ++k)
                g.states[k].push_back(states_[k].second.narrow(0, run.at, run.padded));
        }
        i = end;
    }
    return groups;
}

} // namespace skein::train
