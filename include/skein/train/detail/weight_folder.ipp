// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/train/weight_folder.hpp>.

#include <skein/core/error.hpp>
#include <skein/core/posix_disk.hpp>
#include <skein/core/random.hpp>
#include <skein/train/element_values.hpp>
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

/// Calls `use(bytes, rows)` for the rows of all pieces in order, a few MiB at a time and in the type
/// of the file.
template <class Use>
void for_rows(const weight_source& from, const planned_tensor& t, const Use& use) {
    for (const auto& piece : t.pieces) {
        const auto& source = from.tensors().at(piece.name);
        const auto most = rows_at_once(source);
        const auto end = piece.first_row + piece.rows;
        for (auto first = piece.first_row; first < end; first += most) {
            const auto rows = std::min(most, end - first);
            byte_buffer bytes(row_bytes(source) * static_cast<std::uint64_t>(rows));
            from.read(piece.name, first, rows, bytes);
            if (source.dtype != t.dtype) bytes = cast_elements(bytes, source.dtype, t.dtype);
            use(byte_span(bytes), rows);
        }
    }
}

inline constexpr std::uint64_t turned_block = 64u << 20;

/// The columns of what is read are the rows of the file; so many of them at a time that a block of
/// 64 MiB is held, and all is read once for each block.
SKEIN_INLINE void write_turned(file& out, const weight_source& from, const planned_tensor& t,
                               std::uint64_t block_bytes) {
    const auto size = dtype_size(t.dtype).value();
    const auto rows = static_cast<std::uint64_t>(t.shape[0]);
    const auto row = static_cast<std::uint64_t>(t.shape[1]) * size; // of the file
    if (rows == 0 || row == 0) return;
    const auto most = std::clamp<std::uint64_t>(block_bytes / row, 1, rows);
    byte_buffer block;
    for (std::uint64_t first = 0; first < rows; first += most) {
        const auto here = std::min(most, rows - first);
        block.resize(here * row);
        std::uint64_t column = 0; // of the file: a row of what is read
        for_rows(from, t, [&](byte_span bytes, std::int64_t count) {
            for (std::int64_t i = 0; i < count; ++i, ++column) {
                const auto* const source =
                    bytes.data() + (static_cast<std::uint64_t>(i) * rows + first) * size;
                for (std::uint64_t r = 0; r < here; ++r)
                    std::memcpy(block.data() + r * row + column * size, source + r * size, size);
            }
        });
        if (const auto done = out.append(block); !done) throw done.error();
    }
}

/// One tensor at the end of a file.
SKEIN_INLINE void write_tensor(file& out, const weight_source& from, const planned_tensor& t) {
    if (t.turned) return write_turned(out, from, t, turned_block);
    for_rows(from, t, [&](byte_span bytes, std::int64_t) {
        if (const auto done = out.append(bytes); !done) throw done.error();
    });
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
    if (!is_float_type(dtype))
        throw error(errc::not_supported, fmt::format("not supported: weights as '{}'", dtype))
            .with_hint("F32, F64, BF16 or F16");
    for (auto& t : plan.tensors)
        if (is_float_type(t.dtype)) t.dtype = dtype;
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
                                                 const std::string& given,
                                                 const export_options& options) {
    posix_disk here;
    auto folder = given;
    while (folder.size() > 1 && folder.back() == '/') folder.pop_back();
    if (folder.empty()) throw error(errc::invalid_argument, "a folder without a name");
    if (here.status(folder))
        throw error(errc::already_exists, fmt::format("{} is there already", folder))
            .with_hint("give a folder that is not there; nothing is replaced");
    auto plan = plan_export(options.map, from.tensors());
    detail::cast_floats(plan, options.dtype);
    std::ranges::sort(plan.tensors, {}, &planned_tensor::name);
    const auto part = fmt::format("{}.part-{:016x}", folder, system_random().next());
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

SKEIN_INLINE exported_weights export_safetensors(const std::string& from, const std::string& folder,
                                                 const export_options& options) {
    posix_disk here;
    return export_safetensors(*open_weights(here, from), folder, options);
}

} // namespace skein::train
