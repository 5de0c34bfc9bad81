// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/train/unit.hpp>: above all a call whose activations are computed again in the backward
// pass.
//
//   source: Chen et al. 2016 (arXiv 1604.06174); torch.utils.checkpoint with use_reentrant=True

#include <skein/core/error.hpp>
#include <skein/torch/torch.hpp>

#include <mutex>
#include <utility>

namespace skein::train {

SKEIN_INLINE unit_hooks::~unit_hooks() = default;
SKEIN_INLINE unit_mark::~unit_mark() = default;

namespace detail {

SKEIN_INLINE bool gradients_are_on() { return torch::GradMode::is_enabled(); }

SKEIN_INLINE at::Tensor cast_to(const at::Tensor& tensor, at::ScalarType type) {
    const bool fits =
        !tensor.defined() || !tensor.is_floating_point() || tensor.scalar_type() == type;
    return fits ? tensor : tensor.to(type);
}

SKEIN_INLINE void refuse_recompute() {
    throw error(
        errc::not_supported,
        "not supported: recomputing a block whose forward takes tensors inside of other types")
        .with_hint("give them as arguments of their own, or leave the block out of "
                   "checkpoint_activations()");
}

/// The state of the default generator, of which dropout draws.
struct generator_state {
    static at::Tensor get() {
        auto generator = at::detail::getDefaultCPUGenerator();
        const std::lock_guard lock(generator.mutex());
        return generator.get_state();
    }
    static void set(const at::Tensor& state) {
        auto generator = at::detail::getDefaultCPUGenerator();
        const std::lock_guard lock(generator.mutex());
        generator.set_state(state);
    }
};

/// What the backward pass needs beside the inputs.
struct recomputed_call : torch::CustomClassHolder {
    block_call call;
    std::function<void()> before_backward;
    at::Tensor generator; // before the first call
};

struct recompute : torch::autograd::Function<recompute> {
    using list = torch::autograd::variable_list;

    static list forward(torch::autograd::AutogradContext* ctx,
                        c10::intrusive_ptr<recomputed_call> call, at::TensorList inputs) {
        ctx->save_for_backward(inputs.vec());
        call->generator = generator_state::get();
        auto outputs = call->call(inputs.vec()); // without gradients: inside of a function
        ctx->saved_data["call"] = c10::IValue::make_capsule(std::move(call));
        return outputs;
    }

    static list backward(torch::autograd::AutogradContext* ctx, list gradients) {
        const auto holder = ctx->saved_data["call"].toCapsule();
        auto& call = static_cast<recomputed_call&>(*holder);
        call.before_backward();
        const auto saved = ctx->get_saved_variables();
        list inputs;
        for (const auto& s : saved)
            inputs.push_back(s.detach().set_requires_grad(s.requires_grad()));
        list outputs;
        {
            const auto now = generator_state::get();
            generator_state::set(call.generator);
            torch::AutoGradMode on(true);
            try {
                outputs = call.call(inputs);
            } catch (...) {
                generator_state::set(now);
                throw;
            }
            generator_state::set(now);
        }
        list roots, from;
        for (std::size_t i = 0; i < outputs.size(); ++i)
            if (outputs[i].requires_grad() && gradients[i].defined()) {
                roots.push_back(outputs[i]);
                from.push_back(gradients[i]);
            }
        if (!roots.empty()) torch::autograd::backward(roots, from);
        list back{at::Tensor()}; // for the call
        for (const auto& input : inputs)
            back.push_back(input.requires_grad() ? input.grad() : at::Tensor());
        return back;
    }
};

SKEIN_INLINE std::vector<at::Tensor> call_recomputed(block_call call,
                                                     std::vector<at::Tensor> inputs,
                                                     std::function<void()> before_backward) {
    auto held = c10::make_intrusive<recomputed_call>();
    const auto count = inputs.size();
    held->call = [call = std::move(call), count](const std::vector<at::Tensor>& all) {
        return call({all.begin(), all.begin() + static_cast<std::ptrdiff_t>(count)});
    };
    held->before_backward = std::move(before_backward);
    // Parameters alone make a block worth a backward pass: something has to need a gradient.
    inputs.push_back(torch::empty({0}, torch::TensorOptions().requires_grad(true)));
    return recompute::apply(std::move(held), at::TensorList(inputs));
}

} // namespace detail
} // namespace skein::train
