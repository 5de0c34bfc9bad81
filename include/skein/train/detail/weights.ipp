// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/train/weights.hpp>.

#include <skein/core/error.hpp>
#include <skein/core/posix_disk.hpp>
#include <skein/torch/torch.hpp>
#include <skein/train/training_state.hpp>

#include <optional>
#include <ranges>
#include <unordered_set>
#include <utility>

#include <fmt/core.h>

namespace skein::train {

SKEIN_INLINE loaded_checkpoint open_checkpoint(disk& where, const std::string& path) {
    if (where.status(path + "/manifest.json")) return checkpointer::open(where, path).value();
    std::optional<error> first;
    const checkpointer run(where, path + "/checkpoints");
    for (const std::uint64_t step : std::views::reverse(run.steps())) {
        auto opened = checkpointer::open(where, run.step_path(step));
        if (opened) return std::move(*opened);
        if (!first) first = opened.error();
    }
    if (first) throw *first;
    throw error(errc::not_found, fmt::format("there is no checkpoint in {}", path))
        .with_hint("give a run's folder, such as runs/gpt, or one of its checkpoints/step-...");
}

SKEIN_INLINE loaded_weights load_weights(torch::nn::Module& module, const std::string& path) {
    at::NoGradGuard no_grad;
    posix_disk here;
    const auto from = open_checkpoint(here, path);
    const auto fill = [&](const std::string& name, at::Tensor tensor) {
        auto whole = tensor.detach().contiguous();
        from.read("model." + name, safetensors_dtype(whole), whole.sizes().vec(), bytes_of(whole));
        if (whole.data_ptr() != tensor.data_ptr()) tensor.copy_(whole);
    };
    std::unordered_set<const void*> seen; // a tied parameter is saved under its first name
    for (const auto& item : module.named_parameters(true)) {
        if (item.value().defined() && seen.insert(item.value().unsafeGetTensorImpl()).second)
            fill(item.key(), item.value());
    }
    for (const auto& item : module.named_buffers(true))
        if (item.value().defined()) fill(item.key(), item.value());
    return {from.path(), from.step()};
}

} // namespace skein::train
