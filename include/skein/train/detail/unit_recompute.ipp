// SPDX-License-Identifier: Apache-2.0
#pragma once
// A call of a block whose activations are computed again in the backward pass. Used by
// <skein/train/detail/unit.ipp> alone.
//
// The second call happens in another place and at another time than the first. It sees what the
// first one saw (random numbers, buffers, autocast), and what it does to them is undone: the block
// has been called once. What it cannot see again, or what autograd does not allow, is refused.
//
//   source: Chen et al. 2016 (arXiv 1604.06174); torch.utils.checkpoint with use_reentrant=True

#include <skein/core/error.hpp>
#include <skein/torch/engine.hpp>
#include <skein/torch/torch.hpp>
#include <skein/train/unit.hpp>

#include <cstdint>
#include <cstring>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <fmt/core.h>

namespace skein::train::detail {

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

/// How this thread casts. The cache is off: it would hand a weight that the first call has cast,
/// which has no gradient, to the second one.
struct autocast_state {
    bool on = at::autocast::is_autocast_enabled(at::kCPU);
    at::ScalarType type = at::autocast::get_autocast_dtype(at::kCPU);
    bool cached = at::autocast::is_autocast_cache_enabled();

    void set(bool with_cache) const {
        at::autocast::set_autocast_enabled(at::kCPU, on);
        at::autocast::set_autocast_dtype(at::kCPU, type);
        at::autocast::set_autocast_cache_enabled(with_cache && cached);
    }
};

/// Buffers of a block at some time.
class buffer_state {
public:
    struct buffer {
        at::Tensor tensor, values;
    };

    explicit buffer_state(const torch::nn::Module& block) {
        at::NoGradGuard no_grad;
        for (const auto& tensor : block.buffers())
            if (tensor.defined()) all_.push_back({tensor, tensor.detach().clone()});
    }
    /// Below autograd: the graph of another call may have saved the buffer.
    void put_back() const {
        at::NoGradGuard no_grad;
        for (const auto& [tensor, values] : all_) {
            if (same(tensor, values)) continue;
            if (tensor.sizes() == values.sizes() && tensor.scalar_type() == values.scalar_type())
                tensor.variable_data().copy_(values);
            else
                tensor.set_data(values.clone());
        }
    }
    /// Only those that have other values now.
    void keep_changed() {
        std::erase_if(all_, [](const buffer& b) { return same(b.tensor, b.values); });
    }

private:
    static bool same(const at::Tensor& a, const at::Tensor& b) {
        if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
        if (!a.is_contiguous() || !b.is_contiguous()) return at::equal(a.detach(), b);
        return a.nbytes() == 0 ||
               std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
    }
    std::vector<buffer> all_;
};

/// What must not have changed between the two calls: nobody could undo it.
struct block_state {
    std::vector<bool> modes;    ///< training or not, of the block and all modules inside
    std::uint64_t versions = 0; ///< of its parameters, added up

    explicit block_state(const torch::nn::Module& block) {
        block.apply([&](const torch::nn::Module& each) { modes.push_back(each.is_training()); });
        for (const auto& p : block.parameters())
            if (p.defined())
                versions += p.unsafeGetTensorImpl()->version_counter().current_version();
    }
};

[[noreturn]] inline void refuse_second_call(const std::string& why, const char* hint) {
    throw error(errc::not_supported,
                "not supported: a block that is computed again (checkpoint_activations) " + why)
        .with_hint(hint);
}

/// As torch.utils.checkpoint asks the engine: the second call runs a backward pass of its own,
/// which adds to all gradients that it comes to and has no graph.
SKEIN_INLINE void require_plain_backward() {
    const char* const hint = "leave the block out of checkpoint_activations(), or take the loss's "
                             "gradient with backward() alone";
    if (!torch::autograd::Engine::get_default_engine().is_checkpoint_valid())
        refuse_second_call("under autograd::grad(), or a backward() for some inputs only", hint);
    if (torch::GradMode::is_enabled())
        refuse_second_call("in a backward pass with create_graph", hint);
}

/// What the backward pass needs beside the inputs.
struct recomputed_call : torch::CustomClassHolder {
    recomputed_call(const torch::nn::Module& of, block_call what, std::function<void()> before)
        : block(&of), call(std::move(what)), before_backward(std::move(before)),
          generator(generator_state::get()), buffers(of), state(of) {}

    std::vector<at::Tensor> first(const std::vector<at::Tensor>& inputs);
    std::vector<at::Tensor> again(const std::vector<at::Tensor>& inputs) const;
    void require_unchanged() const;

    const torch::nn::Module* block;
    block_call call;
    std::function<void()> before_backward;
    at::Tensor generator; // before the first call
    autocast_state autocast;
    buffer_state buffers;
    block_state state;
    std::vector<std::vector<std::int64_t>> shapes; // of what it returned
};

/// Calls `restore` when it goes.
template <class Restore>
struct restored {
    Restore restore;
    ~restored() { restore(); }
};

SKEIN_INLINE std::vector<at::Tensor> recomputed_call::first(const std::vector<at::Tensor>& inputs) {
    std::vector<at::Tensor> outputs;
    {
        const auto back = [this] { autocast.set(/*with_cache=*/true); };
        const restored<decltype(back)> guard{back};
        autocast.set(/*with_cache=*/false);
        outputs = call(inputs); // without gradients: inside of a function
    }
    buffers.keep_changed();
    for (const auto& each : outputs)
        shapes.push_back(each.defined() ? each.sizes().vec() : std::vector<std::int64_t>{-1});
    return outputs;
}

SKEIN_INLINE void recomputed_call::require_unchanged() const {
    const block_state now(*block);
    if (now.versions != state.versions)
        refuse_second_call("whose parameters were written to between forward and backward",
                           "write to parameters between steps");
    if (now.modes != state.modes)
        refuse_second_call("that changed between train() and eval() between forward and backward",
                           "change the mode behind backward()");
}

SKEIN_INLINE std::vector<at::Tensor> recomputed_call::again(
    const std::vector<at::Tensor>& inputs) const {
    std::vector<at::Tensor> outputs;
    {
        const auto generator_now = generator_state::get();
        const autocast_state autocast_now;
        const auto back = [&] {
            generator_state::set(generator_now);
            autocast_now.set(/*with_cache=*/true);
        };
        const restored<decltype(back)> guard{back};
        generator_state::set(generator);
        autocast.set(/*with_cache=*/false);
        buffers.put_back();
        const torch::AutoGradMode on(true);
        outputs = call(inputs);
    }
    bool same = outputs.size() == shapes.size();
    for (std::size_t i = 0; same && i < outputs.size(); ++i)
        same = outputs[i].defined() ? outputs[i].sizes() == at::IntArrayRef(shapes[i])
                                    : shapes[i] == std::vector<std::int64_t>{-1};
    if (!same)
        refuse_second_call("returned other tensors than the first time",
                           "keep what forward() counts in buffers: those have the values again "
                           "that they had");
    return outputs;
}

struct recompute : torch::autograd::Function<recompute> {
    using list = torch::autograd::variable_list;

    static list forward(torch::autograd::AutogradContext* ctx,
                        c10::intrusive_ptr<recomputed_call> call, at::TensorList inputs) {
        ctx->save_for_backward(inputs.vec());
        auto outputs = call->first(inputs.vec());
        ctx->saved_data["call"] = c10::IValue::make_capsule(std::move(call));
        return outputs;
    }

    static list backward(torch::autograd::AutogradContext* ctx, list gradients) {
        require_plain_backward();
        const auto holder = ctx->saved_data["call"].toCapsule();
        const auto& call = static_cast<const recomputed_call&>(*holder);
        call.require_unchanged();
        call.before_backward();
        const auto saved = ctx->get_saved_variables();
        list inputs;
        for (const auto& s : saved)
            inputs.push_back(s.detach().set_requires_grad(s.requires_grad()));
        // Not before the end: the graph may have saved a buffer.
        const buffer_state buffers_now(*call.block);
        const auto back_to_now = [&] { buffers_now.put_back(); };
        const restored<decltype(back_to_now)> guard{back_to_now};
        const list outputs = call.again(inputs);
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

SKEIN_INLINE std::vector<at::Tensor> call_recomputed(const unit_mark& block, block_call call,
                                                     std::vector<at::Tensor> inputs,
                                                     std::function<void()> before_backward) {
    const auto count = inputs.size();
    auto held = c10::make_intrusive<recomputed_call>(
        dynamic_cast<const torch::nn::Module&>(block),
        [call = std::move(call), count](const std::vector<at::Tensor>& all) {
            return call({all.begin(), all.begin() + static_cast<std::ptrdiff_t>(count)});
        },
        std::move(before_backward));
    // Parameters alone make a block worth a backward pass: something has to need a gradient.
    inputs.push_back(torch::empty({0}, torch::TensorOptions().requires_grad(true)));
    return recompute::apply(std::move(held), at::TensorList(inputs));
}

} // namespace skein::train::detail
