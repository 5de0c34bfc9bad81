// SPDX-License-Identifier: Apache-2.0
#pragma once
// Everything a run needs to go on as if it had never stopped, to and from a checkpoint.
//
// Tensors are saved under the module's own names ("model.wte", "optim.exp_avg.wte"), not as flat
// buffers, so that any number of workers, and any other reader of safetensors, can load them. The
// rest is a small JSON object: sampler position, optimizer steps, seed. Dropout needs no saved
// state: every step seeds the generator with (seed, step, rank).

#include <skein/core/bytes.hpp>
#include <skein/core/error.hpp>
#include <skein/torch/torch.hpp>
#include <skein/train/checkpoint.hpp>
#include <skein/train/flat.hpp>
#include <skein/train/optimizer.hpp>
#include <skein/train/sampler.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace skein::train {

/// The name of a tensor's type in the safetensors format; errc::not_supported for an exotic one.
[[nodiscard]] inline std::string safetensors_dtype(const at::Tensor& tensor) {
    switch (tensor.scalar_type()) {
    case at::kFloat: return "F32";
    case at::kDouble: return "F64";
    case at::kBFloat16: return "BF16";
    case at::kHalf: return "F16";
    case at::kLong: return "I64";
    case at::kInt: return "I32";
    case at::kShort: return "I16";
    case at::kChar: return "I8";
    case at::kByte: return "U8";
    case at::kBool: return "BOOL";
    default:
        throw error(errc::not_supported, fmt::format("not supported: a checkpoint of type {}",
                                                     c10::toString(tensor.scalar_type())));
    }
}

/// The bytes of a contiguous CPU tensor.
[[nodiscard]] inline mut_byte_span bytes_of(const at::Tensor& tensor) {
    SKEIN_CHECK(tensor.is_contiguous() && tensor.device().is_cpu(),
                "needs a contiguous CPU tensor");
    return {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()};
}

/// Seeds this thread's default generator for one step of one rank.
inline void seed_step(std::uint64_t seed, std::uint64_t step, int rank) {
    std::uint64_t x = seed * 0x9e3779b97f4a7c15ULL + step * 0xbf58476d1ce4e5b9ULL +
                      static_cast<std::uint64_t>(rank) + 1; // splitmix64 of the three
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    torch::manual_seed(x ^ (x >> 31));
}

/// The parts of a run that a checkpoint covers; refers to objects of the trainer.
class training_state {
public:
    training_state(flat_storage& storage, flat_optimizer& optimizer, sampler& order)
        : storage_(&storage), optimizer_(&optimizer), order_(&order) {}

    /// Tells a model or optimizer with other tensors.
    [[nodiscard]] std::string config_hash() const {
        return fmt::format("{:016x}-{}", storage_->layout_hash(), optimizer_->name());
    }

    /// What to save after `step` finished steps. The views stay valid until the next step.
    [[nodiscard]] checkpoint_state save(std::uint64_t step, std::uint64_t seed) {
        checkpoint_state state;
        state.step = step;
        state.config_hash = config_hash();
        held_.clear();
        for (auto& [name, tensor] : tensors()) {
            held_.push_back(tensor.contiguous());
            state.tensors.push_back(
                {name, safetensors_dtype(tensor), tensor.sizes().vec(), bytes_of(held_.back())});
        }
        const auto& at = order_->state();
        state.extra["sampler"] = {{"seed", at.seed},
                                  {"epoch", at.epoch},
                                  {"cursor", at.cursor},
                                  {"samples", order_->options().samples},
                                  {"batch", order_->options().batch}};
        state.extra["optimizer"] = {{"name", optimizer_->name()}, {"steps", optimizer_->steps()}};
        state.extra["seed"] = seed;
        return state;
    }

    /// Takes everything over. Throws errc::mismatch, naming what differs, before it changes anything
    /// that a shape check can find.
    void restore(const loaded_checkpoint& from) {
        at::NoGradGuard no_grad;
        if (from.manifest().config_hash != config_hash())
            throw error(errc::mismatch, "the checkpoint is of another model or optimizer")
                .with_where(from.path())
                .with_hint(
                    "give the same model and optimizer options as when the run was started, or "
                    "another run name");
        const auto number = [&](const char* group, const char* key) {
            const auto& extra = from.extra();
            if (!extra.contains(group)) throw missing(from, group);
            return json_uint(extra.at(group), key).value();
        };
        if (number("sampler", "samples") != order_->options().samples)
            throw error(errc::mismatch,
                        fmt::format("the run was started on {} samples, now there are {}",
                                    number("sampler", "samples"), order_->options().samples))
                .with_where(from.path())
                .with_hint("give the same data as when the run was started, or another run name");
        if (number("sampler", "seed") != order_->options().seed)
            throw error(errc::mismatch,
                        fmt::format("the run was started with seed {}, now it is {}",
                                    number("sampler", "seed"), order_->options().seed))
                .with_where(from.path())
                .with_hint("give the same seed as when the run was started, or another run name");
        order_->restore(
            {number("sampler", "seed"), number("sampler", "epoch"), number("sampler", "cursor")});
        optimizer_->set_steps(number("optimizer", "steps"));
        for (auto& [name, tensor] : tensors()) {
            auto whole = tensor.contiguous();
            from.read(name, safetensors_dtype(whole), whole.sizes().vec(), bytes_of(whole));
            if (whole.data_ptr() != tensor.data_ptr()) tensor.copy_(whole);
        }
    }

private:
    static error missing(const loaded_checkpoint& from, const char* what) {
        return error(errc::malformed, fmt::format("the checkpoint has no '{}'", what))
            .with_where(from.path());
    }

    /// Every tensor to save, in one order on all ranks.
    [[nodiscard]] std::vector<std::pair<std::string, at::Tensor>> tensors() const {
        std::vector<std::pair<std::string, at::Tensor>> all;
        for (const auto& s : storage_->segments()) {
            all.emplace_back("model." + s.name, flat_storage::view_of(storage_->params_P(), s));
            for (const auto& [state, flat_P] : optimizer_->states())
                all.emplace_back("optim." + state + "." + s.name, flat_storage::view_of(flat_P, s));
        }
        for (const auto& f : storage_->fixed())
            all.emplace_back("model." + f.name, f.tensor.detach());
        return all;
    }

    flat_storage* storage_;
    flat_optimizer* optimizer_;
    sampler* order_;
    std::vector<at::Tensor> held_;
};

} // namespace skein::train
