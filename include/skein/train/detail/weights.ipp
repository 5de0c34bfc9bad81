// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/train/weights.hpp>.

#include <skein/core/error.hpp>
#include <skein/core/log.hpp>
#include <skein/core/posix_disk.hpp>
#include <skein/torch/torch.hpp>
#include <skein/train/detail/taken_module.hpp>
#include <skein/train/training_state.hpp>
#include <skein/wire/json.hpp>

#include <ranges>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include <fmt/core.h>

namespace skein::train {

SKEIN_INLINE loaded_checkpoint open_checkpoint(disk& where, const std::string& path,
                                               std::vector<std::string>* passed_over) {
    if (where.status(path + "/manifest.json")) return checkpointer::open(where, path).value();
    std::vector<std::pair<std::uint64_t, error>> refused;
    const checkpointer run(where, path + "/checkpoints");
    for (const std::uint64_t step : std::views::reverse(run.steps())) {
        auto opened = checkpointer::open(where, run.step_path(step));
        if (!opened) {
            refused.emplace_back(step, opened.error());
            continue;
        }
        for (const auto& [damaged, why] : refused) {
            auto line = fmt::format("checkpoint of step {} is passed over for that of step {}: {}",
                                    damaged, step, why.what());
            logging::warn("weights", line);
            if (passed_over != nullptr) passed_over->push_back(std::move(line));
        }
        return std::move(*opened);
    }
    if (!refused.empty()) throw refused.front().second;
    throw error(errc::not_found, fmt::format("there is no checkpoint in {}", path))
        .with_hint("give a run's folder, such as runs/gpt, or one of its checkpoints/step-...");
}

namespace detail {

/// The tensors that a checkpoint of this module has, each once, in order of registration.
SKEIN_INLINE std::vector<std::pair<std::string, at::Tensor>> saved_tensors(
    torch::nn::Module& module) {
    std::vector<std::pair<std::string, at::Tensor>> all;
    std::unordered_set<const void*> seen; // a tied parameter is saved under its first name
    for (const auto& item : module.named_parameters(true))
        if (item.value().defined() && seen.insert(item.value().unsafeGetTensorImpl()).second)
            all.emplace_back("model." + item.key(), item.value());
    for (const auto& item : module.named_buffers(true))
        if (item.value().defined()) all.emplace_back("model." + item.key(), item.value());
    return all;
}

/// The name under which the average of a weight is saved; that of the weight itself for what is not
/// trained, such as buffers.
SKEIN_INLINE std::string average_name(const loaded_checkpoint& from, const std::string& name) {
    auto averaged = "optim.ema." + name.substr(std::string_view("model.").size());
    return from.contains(averaged) ? averaged : name;
}

SKEIN_INLINE void require_average(const loaded_checkpoint& from) {
    for (const auto& [name, info] : from.tensors())
        if (name.starts_with("optim.ema.")) return;
    throw error(errc::not_found, "the checkpoint has no averages of the weights")
        .with_where(from.path())
        .with_hint("train with {.average = average_options{}}, or load the weights themselves");
}

/// Whether the checkpoint's evaluations were of these weights; else what to say.
SKEIN_INLINE std::string numbers_of_others(const loaded_checkpoint& from, bool average) {
    std::string numbers;
    for (const auto& [name, value] : from.manifest().metrics)
        if (name != "loss" && !name.starts_with("train_"))
            numbers += fmt::format("{}{} {:.6g}", numbers.empty() ? "" : ", ", name, value);
    const auto extra = parse_json(from.extra(), {.max_bytes = 256u << 20, .max_depth = 64});
    if (numbers.empty() || !extra) return {};
    const auto averaged = extra->find("evaluates_average");
    if (averaged == extra->end() || !averaged->is_boolean() || averaged->get<bool>() == average)
        return {};
    return fmt::format("{} of {} {} of {}, loaded were {}: load with {{.average = {}}} for the "
                       "weights that were measured",
                       numbers, from.path(), numbers.find(',') == std::string::npos ? "is" : "are",
                       average ? "the weights themselves" : "the averages of the weights",
                       average ? "the averages" : "the weights themselves",
                       average ? "false" : "true");
}

/// Throws when the checkpoint has weights that the module has not.
SKEIN_INLINE void refuse_additional(const loaded_checkpoint& from,
                                    const std::vector<std::pair<std::string, at::Tensor>>& wanted) {
    std::unordered_set<std::string> known;
    for (const auto& [name, tensor] : wanted) known.insert(name);
    std::string names;
    std::size_t count = 0;
    for (const auto& [name, info] : from.tensors())
        if (name.starts_with("model.") && !known.contains(name) && ++count <= 5)
            names += (names.empty() ? "" : ", ") + name.substr(6);
    if (count == 0) return;
    throw error(errc::mismatch,
                fmt::format("the checkpoint has {} tensor{} that the model has not: {}{}", count,
                            count == 1 ? "" : "s", names, count > 5 ? ", ..." : ""))
        .with_where(from.path())
        .with_hint("build the model as it was trained, or load with strict = false");
}

} // namespace detail

SKEIN_INLINE loaded_weights load_weights(torch::nn::Module& module, const std::string& path,
                                         weights_options options) {
    at::NoGradGuard no_grad;
    posix_disk here;
    loaded_weights out;
    const auto from = open_checkpoint(here, path, &out.passed_over);
    const auto wanted = detail::saved_tensors(module);
    for (const auto& [name, tensor] : wanted) {
        if (!from.contains(name)) (void)from.read(name); // not_found, by name
        detail::refuse_shared_elements(name, tensor);
    }
    if (options.strict) detail::refuse_additional(from, wanted);
    if (options.average) detail::require_average(from);
    for (const auto& [name, tensor] : wanted) {
        auto whole = tensor.detach().contiguous();
        from.read(options.average ? detail::average_name(from, name) : name,
                  safetensors_dtype(whole), whole.sizes().vec(), bytes_of(whole));
        if (whole.data_ptr() != tensor.data_ptr()) at::Tensor(tensor).copy_(whole);
    }
    out.path = from.path();
    out.step = from.step();
    out.other_numbers = detail::numbers_of_others(from, options.average);
    if (!out.other_numbers.empty()) logging::warn("weights", out.other_numbers);
    return out;
}

} // namespace skein::train
