// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/train/weights.hpp>.

#include <skein/core/error.hpp>
#include <skein/core/fnv.hpp>
#include <skein/core/log.hpp>
#include <skein/core/posix_disk.hpp>
#include <skein/torch/torch.hpp>
#include <skein/train/build.hpp>
#include <skein/train/collective.hpp>
#include <skein/train/detail/taken_module.hpp>
#include <skein/train/training_state.hpp>
#include <skein/wire/json.hpp>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <fmt/core.h>

namespace skein::train {

namespace detail {

/// A tensor of a module, and what this rank has of it: all, or the rows that build() has kept.
struct target_tensor {
    wanted_tensor wanted;
    at::Tensor rows; ///< flat or of the whole's shape
    std::int64_t first_row = 0, count = 0;
};

/// Parameters and buffers, each tensor once, in order of registration.
SKEIN_INLINE std::vector<target_tensor> target_tensors(torch::nn::Module& module) {
    std::vector<target_tensor> all;
    std::unordered_map<const void*, std::size_t> seen;
    const auto cut = cut_parameters(module);
    const auto add = [&](const std::string& name, const at::Tensor& tensor) {
        if (!tensor.defined()) return;
        const auto [known, is_new] = seen.emplace(tensor.unsafeGetTensorImpl(), all.size());
        if (!is_new) { // a tied parameter is saved under its first name
            all[known->second].wanted.other_names.push_back(name);
            return;
        }
        const auto part = cut.find(tensor.unsafeGetTensorImpl());
        target_tensor t{.wanted = {.name = name}, .rows = tensor.detach()};
        if (part == cut.end()) {
            refuse_shared_elements(name, tensor);
            t.wanted.shape = tensor.sizes().vec();
            t.count = rows_of(t.wanted.shape);
        } else {
            const auto& kept = *part->second;
            t.wanted.shape = kept.shape;
            t.rows = kept.values;
            const auto rows = rows_of(kept.shape);
            const auto row = std::max<std::int64_t>(1, c10::multiply_integers(kept.shape) /
                                                           std::max<std::int64_t>(1, rows));
            t.first_row = kept.first / row;
            t.count = kept.count / row;
        }
        t.wanted.dtype = safetensors_dtype(t.rows);
        all.push_back(std::move(t));
    };
    for (const auto& item : module.named_parameters(true)) add(item.key(), item.value());
    for (const auto& item : module.named_buffers(true)) add(item.key(), item.value());
    return all;
}

/// The type of LibTorch for a type of the format.
SKEIN_INLINE at::ScalarType scalar_type_of(std::string_view dtype) {
    if (dtype == "F32") return at::kFloat;
    if (dtype == "F64") return at::kDouble;
    if (dtype == "F16") return at::kHalf;
    if (dtype == "BF16") return at::kBFloat16;
    if (dtype == "I64") return at::kLong;
    if (dtype == "I32") return at::kInt;
    if (dtype == "I16") return at::kShort;
    if (dtype == "I8") return at::kChar;
    if (dtype == "U8") return at::kByte;
    if (dtype == "BOOL") return at::kBool;
    throw error(errc::not_supported, fmt::format("not supported: weights of type {}", dtype));
}

/// Rows of a tensor of a source, turned round where that is said, into rows that are laid out
/// without gaps.
///   first  of the rows, after turning
SKEIN_INLINE void read_piece(const weight_source& from, const planned_tensor& planned,
                             const std::string& name, std::int64_t first, at::Tensor into) {
    const auto& t = from.tensors().at(name);
    const auto count = into.size(0);
    if (count == 0) return;
    if (!planned.turned && t.dtype == planned.dtype)
        return from.read(name, first, count, train::bytes_of(into));
    const auto total = rows_of(t.shape), most = rows_at_once(t);
    auto shape = t.shape;
    if (shape.empty()) shape.push_back(1);
    const auto options = at::TensorOptions(scalar_type_of(t.dtype));
    const auto begin = planned.turned ? 0 : first, end = planned.turned ? total : first + count;
    for (auto at_row = begin; at_row < end; at_row += most) {
        const auto rows = std::min(most, end - at_row);
        shape[0] = rows;
        const auto chunk = at::empty(shape, options);
        from.read(name, at_row, rows, train::bytes_of(chunk));
        if (planned.turned)
            into.narrow(1, at_row, rows).copy_(chunk.narrow(1, first, count).t());
        else
            into.narrow(0, at_row - begin, rows).copy_(chunk.view(into.narrow(0, 0, rows).sizes()));
    }
}

/// The rows that this rank has of a tensor.
SKEIN_INLINE void fill_rows(const weight_source& from, const planned_tensor& planned,
                            const target_tensor& target) {
    auto shape = planned.shape;
    if (shape.empty()) shape.push_back(1);
    shape[0] = target.count;
    auto dense = target.rows.cpu().contiguous(); // rows that no piece has stay as they are
    const auto rows = dense.view(shape);
    for (const auto& piece : planned.pieces) {
        const auto begin = std::max(piece.at, target.first_row);
        const auto end = std::min(piece.at + piece.rows, target.first_row + target.count);
        if (begin < end)
            read_piece(from, planned, piece.name, piece.first_row + begin - piece.at,
                       rows.narrow(0, begin - target.first_row, end - begin));
    }
    if (dense.data_ptr() != target.rows.data_ptr()) at::Tensor(target.rows).copy_(dense);
}

/// Throws when a tensor that a folder has twice is not the same both times.
SKEIN_INLINE void require_equal_values(const weight_source& from, const std::string& a,
                                       const std::string& b) {
    const auto& t = from.tensors().at(a);
    const auto total = rows_of(t.shape), most = rows_at_once(t);
    for (std::int64_t first = 0; first < total; first += most) {
        const auto rows = std::min(most, total - first);
        byte_buffer one(row_bytes(t) * static_cast<std::uint64_t>(rows)), other(one.size());
        from.read(a, first, rows, one);
        from.read(b, first, rows, other);
        if (one == other) continue;
        throw error(errc::mismatch, fmt::format("{} and {} are one tensor of the model and have "
                                                "other values from row {} on",
                                                a, b, first))
            .with_where(from.path())
            .with_hint("save the model again with the weights tied, or build one that does not tie "
                       "them");
    }
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

} // namespace detail

SKEIN_INLINE void load_weights(torch::nn::Module& module, const weight_source& from,
                               const weight_map& map, bool strict) {
    at::NoGradGuard no_grad;
    const auto targets = detail::target_tensors(module);
    std::vector<wanted_tensor> wanted;
    for (const auto& target : targets) wanted.push_back(target.wanted);
    const auto plan = plan_weights(map, from.tensors(), wanted, strict, from.path());
    for (const auto& [a, b] : plan.equal) detail::require_equal_values(from, a, b);
    for (std::size_t i = 0; i < targets.size(); ++i)
        detail::fill_rows(from, plan.tensors[i], targets[i]);
}

namespace detail {

/// Warns where the numbers of a checkpoint were made with other weights than these.
///   result  what was said; empty: nothing
SKEIN_INLINE std::string warn_of_others(const weight_source& from, bool average) {
    const auto* const ours = dynamic_cast<const checkpoint_weights*>(&from);
    if (ours == nullptr) return {};
    auto text = numbers_of_others(ours->checkpoint(), average);
    if (!text.empty()) logging::warn("weights", text);
    return text;
}

/// The first rank reads all of a checkpoint to verify it, and says which one it is.
SKEIN_INLINE std::unique_ptr<weight_source> open_on_all(const context& ctx, disk& where,
                                                        const std::string& from, bool average) {
    std::unique_ptr<weight_source> source;
    std::string verified;
    if (ctx.is_first()) {
        source = open_weights(where, from, {.average = average});
        if (dynamic_cast<const checkpoint_weights*>(source.get()) != nullptr)
            verified = source->path();
    }
    verified = from_first(ctx, verified);
    if (ctx.is_first()) return source;
    if (verified.empty()) return open_weights(where, from, {.average = average});
    return std::make_unique<checkpoint_weights>(
        open_checkpoint(where, verified, nullptr, /*verify=*/false), average);
}

SKEIN_INLINE std::uint64_t hash_of(const source_table& tensors) {
    fnv1a hash;
    for (const auto& [name, t] : tensors) {
        hash.text(name);
        hash.byte(0);
        hash.text(t.dtype);
        hash.number(t.shape.size());
        for (const auto n : t.shape) hash.number(static_cast<std::uint64_t>(n));
    }
    return hash.value();
}

SKEIN_INLINE void load_on_all(const context& ctx, torch::nn::Module& module,
                              const weight_source& from, const weight_map& map, bool strict) {
    load_weights(module, from, map, strict);
    require_same(ctx, hash_of(from.tensors()), "the tensors of the given weights");
}

SKEIN_INLINE void load_on_all(const context& ctx, torch::nn::Module& module,
                              const std::string& from, const weight_map& map,
                              weights_options options) {
    posix_disk here;
    const auto source = open_on_all(ctx, here, from, options.average);
    load_on_all(ctx, module, *source, map, options.strict);
    if (ctx.is_first()) (void)warn_of_others(*source, options.average);
}

} // namespace detail

SKEIN_INLINE loaded_weights load_weights(torch::nn::Module& module, const std::string& from,
                                         const weight_map& map, weights_options options) {
    posix_disk here;
    loaded_weights out;
    const auto source = open_weights(here, from, {options.average, &out.passed_over});
    load_weights(module, *source, map, options.strict);
    out.path = source->path();
    if (const auto* const ours = dynamic_cast<const checkpoint_weights*>(source.get()))
        out.step = ours->checkpoint().step();
    out.other_numbers = detail::warn_of_others(*source, options.average);
    return out;
}

SKEIN_INLINE loaded_weights load_weights(torch::nn::Module& module, const std::string& from,
                                         weights_options options) {
    return load_weights(module, from, weight_map(), options);
}

} // namespace skein::train
