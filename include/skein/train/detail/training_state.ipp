// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/train/training_state.hpp>.

#include <skein/core/check.hpp>
#include <skein/core/error.hpp>
#include <skein/torch/torch.hpp>
#include <skein/wire/json.hpp>

#include <fmt/core.h>

namespace skein::train {

SKEIN_INLINE std::string safetensors_dtype(const at::Tensor& tensor) {
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

SKEIN_INLINE mut_byte_span bytes_of(const at::Tensor& tensor) {
    SKEIN_CHECK(tensor.is_contiguous() && tensor.device().is_cpu(),
                "needs a contiguous CPU tensor");
    return {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()};
}

SKEIN_INLINE void seed_step(std::uint64_t seed, std::uint64_t step, int rank) {
    std::uint64_t x = seed * 0x9e3779b97f4a7c15ULL + step * 0xbf58476d1ce4e5b9ULL +
                      static_cast<std::uint64_t>(rank) + 1; // splitmix64 of the three
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    torch::manual_seed(x ^ (x >> 31));
}

namespace detail {
SKEIN_INLINE error missing_extra(const loaded_checkpoint& from, const char* what) {
    return error(errc::malformed, fmt::format("the checkpoint has no '{}'", what))
        .with_where(from.path());
}
} // namespace detail

SKEIN_INLINE std::string training_state::config_hash() const {
    return fmt::format("{:016x}-{}", storage_->layout_hash(), optimizer_->name());
}

SKEIN_INLINE checkpoint_state training_state::save(std::uint64_t step, std::uint64_t seed,
                                                   const std::map<std::string, double>& more) {
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
    json extra = json::object();
    extra["sampler"] = {{"seed", at.seed},
                        {"epoch", at.epoch},
                        {"cursor", at.cursor},
                        {"samples", order_->options().samples},
                        {"batch", order_->options().batch}};
    extra["optimizer"] = {{"name", optimizer_->name()}, {"steps", optimizer_->steps()}};
    const auto& left_out = optimizer_->left_out();
    for (std::size_t i = 0; i < left_out.size(); ++i)
        if (left_out[i] != 0)
            extra["optimizer"]["left_out"][storage_->segments()[i].name] = left_out[i];
    extra["seed"] = seed;
    for (const auto& [name, value] : more) extra[name] = value;
    state.extra = dump_json(extra);
    return state;
}

SKEIN_INLINE void training_state::restore(const loaded_checkpoint& from) {
    at::NoGradGuard no_grad;
    if (from.manifest().config_hash != config_hash())
        throw error(errc::mismatch, "the checkpoint is of another model or optimizer")
            .with_where(from.path())
            .with_hint("give the same model and optimizer options as when the run was started, or "
                       "another run name");
    const json extra = parse_json(from.extra(), {.max_bytes = 256u << 20, .max_depth = 64}).value();
    const auto number = [&](const char* group, const char* key) {
        if (!extra.contains(group)) throw detail::missing_extra(from, group);
        return json_uint(extra.at(group), key).value();
    };
    if (number("sampler", "samples") != order_->options().samples)
        throw error(errc::mismatch,
                    fmt::format("the run was started on {} samples, now there are {}",
                                number("sampler", "samples"), order_->options().samples))
            .with_where(from.path())
            .with_hint("give the same data as when the run was started, or another run name");
    if (number("sampler", "seed") != order_->options().seed)
        throw error(errc::mismatch, fmt::format("the run was started with seed {}, now it is {}",
                                                number("sampler", "seed"), order_->options().seed))
            .with_where(from.path())
            .with_hint("give the same seed as when the run was started, or another run name");
    order_->restore(
        {number("sampler", "seed"), number("sampler", "epoch"), number("sampler", "cursor")});
    optimizer_->set_steps(number("optimizer", "steps"));
    restore_left_out(extra.at("optimizer").value("left_out", json::object()).dump());
    for (auto& [name, tensor] : tensors()) {
        auto whole = tensor.contiguous();
        from.read(name, safetensors_dtype(whole), whole.sizes().vec(), bytes_of(whole));
        if (whole.data_ptr() != tensor.data_ptr()) tensor.copy_(whole);
    }
}

SKEIN_INLINE void training_state::restore_left_out(const std::string& text) {
    const json saved = parse_json(text).value();
    std::vector<std::uint64_t> left_out;
    for (const auto& s : storage_->segments())
        left_out.push_back(saved.contains(s.name) ? json_uint(saved, s.name).value() : 0);
    optimizer_->set_left_out(std::move(left_out));
}

SKEIN_INLINE std::vector<std::pair<std::string, at::Tensor>> training_state::tensors() const {
    std::vector<std::pair<std::string, at::Tensor>> all;
    for (const auto& s : storage_->segments()) {
        all.emplace_back("model." + s.name, flat_storage::view_of(storage_->params_P(), s));
        for (const auto& [state, flat_P] : optimizer_->states())
            all.emplace_back("optim." + state + "." + s.name, flat_storage::view_of(flat_P, s));
    }
    for (const auto& f : storage_->fixed()) all.emplace_back("model." + f.name, f.tensor.detach());
    return all;
}

} // namespace skein::train
