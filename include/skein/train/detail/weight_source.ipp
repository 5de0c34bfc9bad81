// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/train/weight_source.hpp>.

#include <skein/core/error.hpp>
#include <skein/core/log.hpp>
#include <skein/train/detail/checkpoint_table.ipp>
#include <skein/train/detail/weight_shards.ipp>
#include <skein/wire/json.hpp>

#include <algorithm>
#include <optional>
#include <ranges>
#include <set>
#include <utility>

#include <fmt/core.h>

namespace skein::train {

namespace detail {

SKEIN_INLINE std::uint64_t row_bytes(const source_tensor& tensor) {
    return tensor_bytes(tensor.dtype, tensor.shape).value() /
           static_cast<std::uint64_t>(std::max<std::int64_t>(1, rows_of(tensor.shape)));
}

SKEIN_INLINE std::int64_t rows_at_once(const source_tensor& tensor) {
    constexpr std::uint64_t bytes = std::uint64_t{4} << 20;
    const auto rows = bytes / std::max<std::uint64_t>(1, row_bytes(tensor));
    return static_cast<std::int64_t>(std::max<std::uint64_t>(1, rows));
}

} // namespace detail

// ---- reading ------------------------------------------------------------------------------------

SKEIN_INLINE void weight_source::read(const std::string& name, std::int64_t first_row,
                                      std::int64_t rows, mut_byte_span into) const {
    const auto found = tensors_.find(name);
    if (found == tensors_.end())
        throw error(errc::not_found, fmt::format("there is no tensor '{}'", name))
            .with_where(path_);
    const auto& t = found->second;
    const auto total = detail::rows_of(t.shape);
    if (first_row < 0 || rows < 0 || rows > total || first_row > total - rows)
        throw error(errc::invalid_argument,
                    fmt::format("{} rows from row {} of tensor '{}' of shape {}", rows, first_row,
                                name, detail::shape_text(t.shape)))
            .with_where(path_);
    const auto row = detail::row_bytes(t);
    if (row * static_cast<std::uint64_t>(rows) != into.size())
        throw error(errc::invalid_argument,
                    fmt::format("{} rows of tensor '{}' are {} bytes, not {}", rows, name,
                                row * static_cast<std::uint64_t>(rows), into.size()))
            .with_where(path_);
    if (!into.empty()) read_rows(name, t, first_row, rows, into);
}

namespace detail {

SKEIN_INLINE std::optional<error> long_name(const std::string& name) {
    if (name.size() <= max_weight_name) return std::nullopt;
    return error(errc::too_large, fmt::format("the name of a tensor has {} characters: '{}...'",
                                              name.size(), name.substr(0, 40)))
        .with_hint(
            fmt::format("names have at most {}; is this a file of weights?", max_weight_name));
}

/// The first bytes of a file, all of them.
SKEIN_INLINE byte_buffer read_head(file& from, const std::string& path, std::uint64_t bytes) {
    byte_buffer head(bytes);
    const auto got = from.read_at(0, head);
    if (!got) throw got.error();
    if (*got != bytes)
        throw error(errc::corrupt,
                    fmt::format("the header is cut off after {} of {} bytes", *got, bytes))
            .with_where(path)
            .with_hint("copy the file anew");
    return head;
}

SKEIN_INLINE safetensors_header open_header(file& from, const std::string& path) {
    const auto size = from.size();
    if (!size) throw size.error();
    const auto refuse = [&](const error& why) {
        return error(why.code(), std::string(why.text()))
            .with_where(path)
            .with_hint("it is no whole safetensors file; copy it anew from where it came");
    };
    const auto first = read_head(from, path, std::min<std::uint64_t>(*size, 8));
    const auto head_bytes = safetensors_head_bytes(first, *size);
    if (!head_bytes) throw refuse(head_bytes.error());
    auto header = parse_safetensors_head(read_head(from, path, *head_bytes), *size);
    if (!header) throw refuse(header.error());
    return std::move(*header);
}

} // namespace detail

// ---- one file -----------------------------------------------------------------------------------

SKEIN_INLINE safetensors_weights::safetensors_weights(disk& where, const std::string& path)
    : weight_source(path) {
    auto opened = where.open(path, open_mode::read);
    if (!opened) throw opened.error();
    file_ = std::move(*opened);
    auto header = detail::open_header(*file_, path_);
    for (auto& t : header.tensors) {
        if (auto why = detail::long_name(t.name)) throw std::move(*why).with_where(path_);
        offsets_.emplace(t.name, t.offset);
        tensors_.emplace(std::move(t.name), source_tensor{std::move(t.dtype), std::move(t.shape)});
    }
    metadata_ = std::move(header.metadata);
}

SKEIN_INLINE void safetensors_weights::read_rows(const std::string& name,
                                                 const source_tensor& /*tensor*/,
                                                 std::int64_t first_row, std::int64_t rows,
                                                 mut_byte_span into) const {
    const auto row = into.size() / static_cast<std::uint64_t>(rows);
    const auto got =
        file_->read_at(offsets_.at(name) + row * static_cast<std::uint64_t>(first_row), into);
    if (!got) throw got.error();
    if (*got != into.size())
        throw error(errc::corrupt, fmt::format("tensor '{}' is cut off after {} of {} bytes", name,
                                               *got, into.size()))
            .with_where(path_)
            .with_hint("the file has become shorter; copy it anew");
}

// ---- a folder of Hugging Face's -----------------------------------------------------------------

namespace detail {

/// Whether it is the name of a safetensors file of the same folder.
SKEIN_INLINE bool is_shard_name(std::string_view name) {
    return name.ends_with(".safetensors") && name.size() <= 255 &&
           name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos &&
           !name.starts_with(".");
}

SKEIN_INLINE result<std::map<std::string, std::string>> parse_weight_index(byte_span text) {
    const auto index = parse_json(text, {.max_bytes = max_safetensors_header, .max_depth = 8});
    if (!index) return error(index.error().code(), std::string(index.error().text()));
    const auto found = index->is_object() ? index->find("weight_map") : index->end();
    if (!index->is_object() || found == index->end() || !found->is_object())
        return error(errc::malformed, "the index has no 'weight_map'");
    std::map<std::string, std::string> files;
    for (const auto& [name, value] : found->items()) {
        if (auto why = long_name(name)) return *why;
        if (!value.is_string())
            return error(errc::malformed,
                         fmt::format("the file of tensor '{}' is not a text", name));
        const auto& shard = value.template get_ref<const std::string&>();
        if (!is_shard_name(shard))
            return error(errc::malformed,
                         fmt::format("tensor '{}' is said to be in {}, which is no safetensors "
                                     "file of this folder",
                                     name, dump_json(value).substr(0, 255)));
        files.emplace(name, shard);
    }
    return files;
}

SKEIN_INLINE std::map<std::string, std::string> read_weight_index(disk& where,
                                                                  const std::string& path) {
    const auto bytes = where.read_whole(path, max_safetensors_header);
    if (!bytes) throw bytes.error();
    auto files = parse_weight_index(*bytes);
    if (files) return std::move(*files);
    auto why = error(files.error()).with_where(path);
    if (why.hint().empty())
        why.with_hint("an index has {\"weight_map\": {\"<tensor>\": \"<file of this folder>\"}}; "
                      "copy it anew from where it came");
    throw why;
}

} // namespace detail

SKEIN_INLINE hugging_face_weights::hugging_face_weights(disk& where, const std::string& folder)
    : weight_source(folder) {
    const auto index_path = join_path(folder, detail::hugging_face_index);
    if (!where.status(index_path)) {
        const auto single = join_path(folder, detail::hugging_face_file);
        if (!where.status(single))
            throw error(errc::not_found,
                        fmt::format("there is no {} and no {} in {}", detail::hugging_face_file,
                                    detail::hugging_face_index, folder))
                .with_hint("not supported: pickled weights (pytorch_model.bin, .pt); save them "
                           "with save_pretrained(), which writes safetensors");
        add_shard(where, std::string(detail::hugging_face_file), {});
        return;
    }
    const auto index = detail::read_weight_index(where, index_path);
    std::set<std::string> names;
    for (const auto& [name, shard] : index) names.insert(shard);
    if (names.size() > max_weight_files)
        throw error(errc::too_large, fmt::format("the index names {} files, more than {}",
                                                 names.size(), max_weight_files))
            .with_where(index_path);
    for (const auto& name : names) add_shard(where, name, index);
    for (const auto& [name, shard] : index)
        if (!tensors_.contains(name))
            throw error(errc::mismatch, fmt::format("the index says that tensor '{}' is in {}, "
                                                    "which does not have it",
                                                    name, shard))
                .with_where(index_path)
                .with_hint("index and shards are of two saves; copy the folder anew");
}

SKEIN_INLINE void hugging_face_weights::add_shard(disk& where, const std::string& name,
                                                  const std::map<std::string, std::string>& index) {
    shards_.push_back(std::make_unique<safetensors_weights>(where, join_path(path_, name)));
    for (const auto& [tensor, info] : shards_.back()->tensors()) {
        const auto said = index.find(tensor);
        if (!index.empty() && (said == index.end() || said->second != name))
            throw error(
                errc::mismatch,
                fmt::format("{} has tensor '{}', which is {} by the index", name, tensor,
                            said == index.end() ? std::string("in no file") : "in " + said->second))
                .with_where(path_)
                .with_hint("index and shards are of two saves; copy the folder anew");
        tensors_.emplace(tensor, info);
        shard_of_.emplace(tensor, shards_.size() - 1);
    }
}

SKEIN_INLINE void hugging_face_weights::read_rows(const std::string& name,
                                                  const source_tensor& /*tensor*/,
                                                  std::int64_t first_row, std::int64_t rows,
                                                  mut_byte_span into) const {
    shards_[shard_of_.at(name)]->read(name, first_row, rows, into);
}

// ---- a checkpoint of ours -----------------------------------------------------------------------

namespace detail {
inline constexpr std::string_view weight_prefix = "model.";
inline constexpr std::string_view average_prefix = "optim.ema.";
} // namespace detail

SKEIN_INLINE checkpoint_weights::checkpoint_weights(loaded_checkpoint from, bool average)
    : weight_source(from.path()), from_(std::move(from)), average_(average) {
    bool has_average = false;
    for (const auto& [name, t] : from_.tensors()) {
        has_average = has_average || name.starts_with(detail::average_prefix);
        if (name.starts_with(detail::weight_prefix))
            tensors_.emplace(name.substr(detail::weight_prefix.size()),
                             source_tensor{t.dtype, t.shape});
    }
    if (average && !has_average)
        throw error(errc::not_found, "the checkpoint has no averages of the weights")
            .with_where(path_)
            .with_hint("train with {.average = average_options{}}, or load the weights themselves");
}

/// The average of a weight; the weight itself of what is not trained, such as buffers.
SKEIN_INLINE std::string checkpoint_weights::saved_name(const std::string& name) const {
    auto averaged = std::string(detail::average_prefix) + name;
    if (average_ && from_.contains(averaged)) return averaged;
    return std::string(detail::weight_prefix) + name;
}

SKEIN_INLINE void checkpoint_weights::read_rows(const std::string& name,
                                                const source_tensor& tensor, std::int64_t first_row,
                                                std::int64_t rows, mut_byte_span into) const {
    from_.read(saved_name(name), tensor.dtype, tensor.shape, first_row, rows, into);
}

SKEIN_INLINE checkpoint_tensors::checkpoint_tensors(loaded_checkpoint from)
    : weight_source(from.path()), from_(std::move(from)) {
    for (const auto& [name, t] : from_.tensors())
        tensors_.emplace(name, source_tensor{t.dtype, t.shape});
}

SKEIN_INLINE void checkpoint_tensors::read_rows(const std::string& name,
                                                const source_tensor& tensor, std::int64_t first_row,
                                                std::int64_t rows, mut_byte_span into) const {
    from_.read(name, tensor.dtype, tensor.shape, first_row, rows, into);
}

SKEIN_INLINE loaded_checkpoint open_checkpoint(disk& where, const std::string& path,
                                               std::vector<std::string>* passed_over, bool verify) {
    if (where.status(path + "/manifest.json"))
        return checkpointer::open(where, path, verify).value();
    std::vector<std::pair<std::uint64_t, error>> refused;
    const auto inner = path + "/checkpoints";
    const checkpointer run(where, where.status(inner) ? inner : path);
    for (const std::uint64_t step : std::views::reverse(run.steps())) {
        auto opened = checkpointer::open(where, run.step_path(step), verify);
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

SKEIN_INLINE weights_place find_weights(disk& where, const std::string& from) {
    constexpr std::string_view hugging_face = "hf:";
    const bool is_named = from.starts_with(hugging_face);
    weights_place found{.path = is_named ? from.substr(hugging_face.size()) : from};
    const auto has = [&](std::string_view name) {
        return !!where.status(join_path(found.path, name));
    };
    if (is_named || has(detail::hugging_face_file) || has(detail::hugging_face_index) ||
        !detail::shard_files(where, found.path).empty())
        found.kind = weights_kind::hugging_face;
    else if (const auto there = where.status(found.path); there && !there->is_directory)
        found.kind = weights_kind::file;
    return found;
}

SKEIN_INLINE std::unique_ptr<weight_source> open_weights(disk& where, const std::string& from,
                                                         source_options options) {
    const auto [kind, path] = find_weights(where, from);
    if (kind == weights_kind::checkpoint)
        return std::make_unique<checkpoint_weights>(
            open_checkpoint(where, path, options.passed_over), options.average);
    if (options.average)
        throw error(errc::not_found, "there are no averages of the weights")
            .with_where(from)
            .with_hint("checkpoints of a run with {.average = average_options{}} have them");
    if (kind == weights_kind::hugging_face) {
        if (const auto files = detail::shard_files(where, path); !files.empty())
            return std::make_unique<detail::shard_weights>(where, path, files);
        return std::make_unique<hugging_face_weights>(where, path);
    }
    return std::make_unique<safetensors_weights>(where, path);
}

} // namespace skein::train
