// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/train/optimizers.hpp>.

#include <skein/core/error.hpp>
#include <skein/torch/torch.hpp>
#include <skein/train/shard_layout.hpp>

#include <algorithm>
#include <cmath>
#include <optional>

#include <fmt/format.h>

namespace skein::train {

SKEIN_INLINE void update_runs::push(at::Tensor params_P, at::Tensor grads_P,
                                    std::vector<at::Tensor> states_P) {
    const auto data = [](const at::Tensor& t) {
        return t.defined() ? static_cast<float*>(t.mutable_data_ptr()) : nullptr;
    };
    places_.push_back({data(params_P), data(grads_P), params_P.numel()});
    params.push_back(std::move(params_P));
    if (grads_P.defined()) grads.push_back(std::move(grads_P));
    states.resize(states_P.size());
    for (std::size_t k = 0; k < states_P.size(); ++k) {
        state_places_.push_back(data(states_P[k]));
        states[k].push_back(std::move(states_P[k]));
    }
}

SKEIN_INLINE void update_runs::for_each(const std::function<void(const run_part&)>& work) const {
    if (!params.empty() && !params.front().device().is_cpu())
        throw error(errc::not_supported,
                    fmt::format("not supported: an update by numbers of parameters on {}",
                                params.front().device().str()))
            .with_hint("train on the CPU, or with an optimizer that updates tensors: AdamW, Adam, "
                       "SGD");
    constexpr std::int64_t line = flat_alignment, grain = (1 << 15) / line;
    const auto call = [&](run_part& part, std::size_t run, std::int64_t begin, std::int64_t end) {
        const auto& at = places_[run];
        const auto first = begin * line;
        const auto count = static_cast<std::size_t>(std::min(end * line, at.size) - first);
        part.params = {at.params + first, count};
        if (at.grads != nullptr) part.grads = {at.grads + first, count};
        for (std::size_t k = 0; k < part.states.size(); ++k)
            part.states[k] = {state_places_[run * part.states.size() + k] + first, count};
        work(part);
    };
    run_part mine{{}, {}, std::vector<std::span<float>>(states.size())};
    for (std::size_t r = 0; r < places_.size(); ++r) {
        const auto lines = (places_[r].size + line - 1) / line;
        if (lines <= grain) {
            call(mine, r, 0, lines);
            continue;
        }
        at::parallel_for(0, lines, grain, [&](std::int64_t begin, std::int64_t end) {
            run_part part{{}, {}, std::vector<std::span<float>>(states.size())};
            call(part, r, begin, end);
        });
    }
}

SKEIN_INLINE description any_optimizer::describe() const {
    description out;
    held_->describe(out);
    out.name = name();
    return out;
}

namespace detail {

SKEIN_INLINE void require_setting(bool fits, std::string what) {
    if (!fits) throw error(errc::usage, std::move(what));
}

SKEIN_INLINE bool is_fraction(double x) { return x >= 0.0 && x < 1.0; }
SKEIN_INLINE bool is_amount(double x) { return x >= 0.0 && std::isfinite(x); }

/// The name is as in C++; Adam and AdamW have the same settings.
template <class Adams>
void check_adam(const Adams& o, const char* name) {
    require_setting(is_fraction(o.beta1) && is_fraction(o.beta2),
                    fmt::format("{} betas {} and {} are not in [0, 1)", name, o.beta1, o.beta2));
    require_setting(
        o.eps > 0 && is_amount(o.weight_decay),
        fmt::format("{} eps {} or weight decay {} is negative", name, o.eps, o.weight_decay));
}

template <class Adams>
void describe_adam(const Adams& o, description& to) {
    to.add("beta1", o.beta1).add("beta2", o.beta2).add("eps", o.eps);
    to.add("weight decay", o.weight_decay).add("decay_vectors", o.decay_vectors);
}

/// What the fused kernels take beside the runs: the number of the step, from 1, once per run, and
/// the divisor of the gradients. Both where the runs are: kernels of a device read them there.
struct fused_values {
    explicit fused_values(const update_runs& runs, const update_values& v) {
        const auto where = runs.params.empty() ? at::Device(at::kCPU) : runs.params[0].device();
        const auto number = [&](double value) {
            const auto type = at::TensorOptions().dtype(at::kFloat);
            return where.is_cpu() ? at::scalar_tensor(value, type)
                                  : at::full({}, value, type.device(where));
        };
        steps.assign(runs.params.size(), number(static_cast<double>(v.step)));
        if (v.grad_scale != 1.0) scale = number(v.grad_scale);
    }
    std::vector<at::Tensor> steps;
    std::optional<at::Tensor> scale;
};

} // namespace detail

} // namespace skein::train

namespace skein {

// ---- AdamW --------------------------------------------------------------------------------------

SKEIN_INLINE std::vector<train::optimizer_state> AdamW::states() const {
    return {{"exp_avg"}, {"exp_avg_sq"}};
}
SKEIN_INLINE void AdamW::check() const { train::detail::check_adam(*this, "AdamW"); }
SKEIN_INLINE void AdamW::describe(train::description& to) const {
    train::detail::describe_adam(*this, to);
}
SKEIN_INLINE void AdamW::update(const train::update_runs& r, const train::update_values& v) const {
    const train::detail::fused_values fused(r, v);
    at::_fused_adamw_(r.params, r.grads, r.states[0], r.states[1], {}, fused.steps, v.lr, beta1,
                      beta2, v.weight_decay, eps, /*amsgrad=*/false, /*maximize=*/false,
                      fused.scale);
}

// ---- Adam ---------------------------------------------------------------------------------------

SKEIN_INLINE std::vector<train::optimizer_state> Adam::states() const {
    return {{"exp_avg"}, {"exp_avg_sq"}};
}
SKEIN_INLINE void Adam::check() const { train::detail::check_adam(*this, "Adam"); }
SKEIN_INLINE void Adam::describe(train::description& to) const {
    train::detail::describe_adam(*this, to);
}
SKEIN_INLINE void Adam::update(const train::update_runs& r, const train::update_values& v) const {
    const train::detail::fused_values fused(r, v);
    at::_fused_adam_(r.params, r.grads, r.states[0], r.states[1], {}, fused.steps, v.lr, beta1,
                     beta2, v.weight_decay, eps, /*amsgrad=*/false, /*maximize=*/false,
                     fused.scale);
}

// ---- SGD ----------------------------------------------------------------------------------------

SKEIN_INLINE std::vector<train::optimizer_state> SGD::states() const {
    if (momentum == 0.0) return {};
    return {{"momentum"}};
}
SKEIN_INLINE void SGD::check() const {
    using train::detail::require_setting;
    require_setting(train::detail::is_fraction(momentum),
                    fmt::format("SGD momentum {} is not in [0, 1)", momentum));
    require_setting(!nesterov || momentum != 0.0, "SGD with nesterov needs a momentum");
    require_setting(train::detail::is_amount(weight_decay),
                    fmt::format("SGD weight decay {} is negative", weight_decay));
}
SKEIN_INLINE void SGD::describe(train::description& to) const {
    to.add("momentum", momentum).add("nesterov", nesterov);
    to.add("weight decay", weight_decay).add("decay_vectors", decay_vectors);
}
SKEIN_INLINE void SGD::update(const train::update_runs& r, const train::update_values& v) const {
    const train::detail::fused_values fused(r, v);
    const at::TensorList buffers =
        r.states.empty() ? at::TensorList() : at::TensorList(r.states[0]);
    // Zeroed momentum without dampening makes the first step like any other.
    at::_fused_sgd_(r.params, r.grads, buffers, v.weight_decay, momentum, v.lr,
                    /*dampening=*/0.0, nesterov, /*maximize=*/false,
                    /*is_first_step=*/false, fused.scale);
}

// ---- Adagrad ------------------------------------------------------------------------------------

SKEIN_INLINE std::vector<train::optimizer_state> Adagrad::states() const {
    return {{"sum", initial_sum}};
}
SKEIN_INLINE void Adagrad::check() const {
    using train::detail::is_amount, train::detail::require_setting;
    require_setting(
        is_amount(lr_decay) && is_amount(initial_sum) && is_amount(weight_decay),
        fmt::format("Adagrad lr_decay {}, initial_sum {} or weight decay {} is negative", lr_decay,
                    initial_sum, weight_decay));
    require_setting(eps > 0, fmt::format("Adagrad eps {} is not positive", eps));
}
SKEIN_INLINE void Adagrad::describe(train::description& to) const {
    to.add("lr_decay", lr_decay).add("eps", eps).add("initial_sum", initial_sum);
    to.add("weight decay", weight_decay).add("decay_vectors", decay_vectors);
}
SKEIN_INLINE void Adagrad::update(const train::update_runs& r,
                                  const train::update_values& v) const {
    const train::detail::fused_values fused(r, v);
    at::_fused_adagrad_(r.params, r.grads, r.states[0], fused.steps, v.lr, lr_decay, v.weight_decay,
                        eps, /*maximize=*/false, fused.scale);
}

// ---- Lion ---------------------------------------------------------------------------------------

SKEIN_INLINE std::vector<train::optimizer_state> Lion::states() const { return {{"exp_avg"}}; }
SKEIN_INLINE void Lion::check() const {
    using train::detail::is_fraction, train::detail::require_setting;
    require_setting(is_fraction(beta1) && is_fraction(beta2),
                    fmt::format("Lion betas {} and {} are not in [0, 1)", beta1, beta2));
    require_setting(train::detail::is_amount(weight_decay),
                    fmt::format("Lion weight decay {} is negative", weight_decay));
}
SKEIN_INLINE void Lion::describe(train::description& to) const {
    to.add("beta1", beta1).add("beta2", beta2);
    to.add("weight decay", weight_decay).add("decay_vectors", decay_vectors);
}
SKEIN_INLINE void Lion::update(const train::update_runs& runs,
                               const train::update_values& v) const {
    const auto scale = static_cast<float>(v.grad_scale), lr = static_cast<float>(v.lr);
    const auto b1 = static_cast<float>(beta1), rest1 = static_cast<float>(1.0 - beta1);
    const auto b2 = static_cast<float>(beta2), rest2 = static_cast<float>(1.0 - beta2);
    const auto kept = static_cast<float>(1.0 - v.lr * v.weight_decay);
    runs.for_each([=](const train::run_part& part) {
        float* const __restrict__ p = part.params.data();
        const float* const __restrict__ g = part.grads.data();
        float* const __restrict__ m = part.states[0].data();
        for (std::size_t i = 0; i < part.params.size(); ++i) {
            const float grad = g[i] / scale;
            const float c = b1 * m[i] + rest1 * grad;
            const float sign = static_cast<float>(c > 0.0f) - static_cast<float>(c < 0.0f);
            p[i] = p[i] * kept - lr * sign;
            m[i] = b2 * m[i] + rest2 * grad;
        }
    });
}

} // namespace skein
