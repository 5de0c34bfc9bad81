// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/train/export_weights.hpp>.

#include <skein/core/error.hpp>
#include <skein/core/posix_disk.hpp>
#include <skein/torch/torch.hpp>
#include <skein/train/build.hpp>
#include <skein/train/detail/weights.ipp>
#include <skein/train/training_state.hpp>
#include <skein/wire/json.hpp>

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/core.h>

namespace skein::train {

SKEIN_INLINE module_weights::module_weights(torch::nn::Module& module)
    : weight_source("the model in memory") {
    if (!detail::cut_parameters(module).empty())
        throw error(errc::not_supported, "not supported: the weights of a model that build() has "
                                         "cut up, of which this rank has a part")
            .with_hint("export the run's folder, which has all of them");
    for (auto& target : detail::target_tensors(module)) {
        tensors_.emplace(target.wanted.name,
                         source_tensor{target.wanted.dtype, target.wanted.shape});
        held_.emplace_back(target.wanted.name, target.rows);
    }
}

SKEIN_INLINE void module_weights::read_rows(const std::string& name, const source_tensor& tensor,
                                            std::int64_t first_row, std::int64_t rows,
                                            mut_byte_span into) const {
    const auto found = std::ranges::find(held_, name, &std::pair<std::string, at::Tensor>::first);
    const auto part =
        tensor.shape.empty() ? found->second : found->second.narrow(0, first_row, rows);
    const auto dense = part.contiguous();
    std::memcpy(into.data(), dense.const_data_ptr(), into.size());
}

namespace detail {

/// Tensors of one file, and its bytes.
struct export_shard {
    std::vector<const planned_tensor*> tensors{};
    std::uint64_t bytes = 0;
};

SKEIN_INLINE std::uint64_t stored_bytes(const planned_tensor& t) {
    return tensor_bytes(t.dtype, t.shape).value();
}

/// In order of their names, a new file where the last one would be too large.
SKEIN_INLINE std::vector<export_shard> deal_shards(const weight_plan& plan, std::uint64_t most) {
    std::vector<export_shard> shards(1);
    for (const auto& t : plan.tensors) {
        if (!shards.back().tensors.empty() && shards.back().bytes + stored_bytes(t) > most)
            shards.emplace_back();
        shards.back().tensors.push_back(&t);
        shards.back().bytes += stored_bytes(t);
    }
    return shards;
}

SKEIN_INLINE void append_rows(file& out, const at::Tensor& rows) {
    if (const auto done = out.append(train::bytes_of(rows)); !done) throw done.error();
}

/// One tensor at the end of a file.
SKEIN_INLINE void write_tensor(file& out, const weight_source& from, const planned_tensor& t) {
    const auto type = at::TensorOptions(scalar_type_of(t.dtype));
    std::vector<at::Tensor> parts; // of one that is turned
    for (const auto& piece : t.pieces) {
        const auto& source = from.tensors().at(piece.name);
        const auto chunk_rows = rows_at_once(source);
        const auto end = piece.first_row + piece.rows;
        for (auto first = piece.first_row; first < end; first += chunk_rows) {
            const auto rows = std::min(chunk_rows, end - first);
            if (source.dtype == t.dtype && !t.turned) {
                byte_buffer bytes(row_bytes(source) * static_cast<std::uint64_t>(rows));
                from.read(piece.name, first, rows, bytes);
                if (const auto done = out.append(bytes); !done) throw done.error();
                continue;
            }
            auto shape = source.shape;
            if (shape.empty()) shape.push_back(1);
            shape[0] = rows;
            const auto chunk = at::empty(shape, at::TensorOptions(scalar_type_of(source.dtype)));
            from.read(piece.name, first, rows, train::bytes_of(chunk));
            const auto cast = chunk.to(type);
            if (t.turned)
                parts.push_back(cast);
            else
                append_rows(out, cast);
        }
    }
    if (t.turned) append_rows(out, at::cat(parts).t().contiguous());
}

SKEIN_INLINE void write_weight_file(disk& where, const std::string& path, const export_shard& shard,
                                    const weight_source& from) {
    std::vector<tensor_view> views;
    std::map<std::string, const planned_tensor*> by_name;
    for (const auto* t : shard.tensors) { // of no memory: a plan looks at the sizes alone
        views.push_back({t->name, t->dtype, t->shape,
                         byte_span(static_cast<const std::byte*>(nullptr), stored_bytes(*t))});
        by_name.emplace(t->name, t);
    }
    const auto plan = plan_safetensors(views, {{"format", "pt"}}).value();
    const auto opened = where.open(path, open_mode::create_new);
    if (!opened) throw opened.error();
    auto& out = **opened;
    if (const auto done = out.append(as_bytes(std::string_view(plan.head))); !done)
        throw done.error();
    for (const auto* view : plan.tensors) write_tensor(out, from, *by_name.at(view->name));
    out.sync().value();
    out.close().value();
}

SKEIN_INLINE void cast_floats(weight_plan& plan, const std::string& dtype) {
    if (dtype.empty()) return;
    if (!is_float(dtype))
        throw error(errc::not_supported, fmt::format("not supported: weights as '{}'", dtype))
            .with_hint("F32, F64, BF16 or F16");
    for (auto& t : plan.tensors)
        if (is_float(t.dtype)) t.dtype = dtype;
}

SKEIN_INLINE exported_weights write_folder(disk& where, const weight_source& from,
                                           const std::string& folder, const weight_plan& plan,
                                           const export_options& options) {
    exported_weights out;
    const auto shards = deal_shards(plan, options.max_shard);
    json index{{"metadata", json::object()}, {"weight_map", json::object()}};
    for (std::size_t i = 0; i < shards.size(); ++i) {
        auto name = shards.size() == 1
                        ? std::string(hugging_face_file)
                        : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
        write_weight_file(where, join_path(folder, name), shards[i], from);
        for (const auto* t : shards[i].tensors) index["weight_map"][t->name] = name;
        out.bytes += shards[i].bytes;
        out.files.push_back(std::move(name));
    }
    index["metadata"]["total_size"] = out.bytes;
    const auto write = [&](std::string_view name, const std::string& text) {
        where.write_whole(join_path(folder, name), as_bytes(std::string_view(text))).value();
    };
    if (shards.size() > 1) write(hugging_face_index, dump_json(index, 2) + "\n");
    if (!options.config.empty()) write("config.json", options.config);
    where.sync_dir(folder).value();
    return out;
}

} // namespace detail

SKEIN_INLINE exported_weights export_safetensors(const weight_source& from,
                                                 const std::string& folder,
                                                 const export_options& options) {
    at::NoGradGuard no_grad;
    posix_disk here;
    if (here.status(folder))
        throw error(errc::already_exists, fmt::format("{} is there already", folder))
            .with_hint("give a folder that is not there; nothing is replaced");
    auto plan = plan_export(options.map, from.tensors());
    detail::cast_floats(plan, options.dtype);
    std::ranges::sort(plan.tensors, {}, &planned_tensor::name);
    const auto part = folder + ".part";
    here.remove_tree(part).value();
    here.make_dirs(part).value();
    try {
        auto out = detail::write_folder(here, from, part, plan, options);
        here.rename(part, folder).value();
        here.sync_dir(parent_path(folder)).value();
        out.path = folder;
        return out;
    } catch (...) {
        (void)here.remove_tree(part);
        throw;
    }
}

SKEIN_INLINE exported_weights export_safetensors(torch::nn::Module& module,
                                                 const std::string& folder,
                                                 const export_options& options) {
    return export_safetensors(module_weights(module), folder, options);
}

SKEIN_INLINE exported_weights export_safetensors(const std::string& from, const std::string& folder,
                                                 const export_options& options) {
    posix_disk here;
    return export_safetensors(*open_weights(here, from), folder, options);
}

} // namespace skein::train
