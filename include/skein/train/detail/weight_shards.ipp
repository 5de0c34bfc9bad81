// SPDX-License-Identifier: Apache-2.0
#pragma once
// A folder of DCP's Hugging Face writer whose ranks have each written a file: rows of tensors. Used
// by <skein/train/detail/weight_source.ipp> alone.

#include <skein/core/error.hpp>
#include <skein/train/detail/checkpoint_table.ipp>
#include <skein/train/weight_source.hpp>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/core.h>

namespace skein::train::detail {

SKEIN_INLINE safetensors_header open_header(file& from, const std::string& path);

/// The names of such files; none where something else says what is in the folder.
SKEIN_INLINE std::vector<std::string> shard_files(disk& where, const std::string& folder) {
    std::vector<std::string> names;
    const auto entries = where.list(folder);
    if (!entries) return names;
    for (const auto& each : *entries) {
        if (each.name == hugging_face_file || each.name == hugging_face_index ||
            each.name == "manifest.json")
            return {};
        if (!each.is_directory && each.name.starts_with("shard-") &&
            each.name.find("-model-") != std::string::npos && each.name.ends_with(".safetensors"))
            names.push_back(each.name);
    }
    return names;
}

/// Rows of all files together. No file says how many there are: a last one that is missing leaves a
/// tensor shorter, which whoever wants it sees by its shape.
class shard_weights final : public weight_source {
public:
    /// Throws: malformed for a file that does not say which rows it has, or has columns; mismatch
    /// for rows that are in no file or in two, or have another type or shape; too_large; a disk
    /// error.
    shard_weights(disk& where, const std::string& folder, const std::vector<std::string>& files)
        : weight_source(folder) {
        if (files.size() > max_weight_files)
            throw error(errc::too_large,
                        fmt::format("{} shards, more than {}", files.size(), max_weight_files))
                .with_where(path_);
        for (const auto& name : files) add(where, name);
        for (auto& [name, parts] : parts_) join(name, parts);
    }

private:
    struct part {
        std::int64_t first = 0, rows = 0;
        const safetensors_weights* file = nullptr;
    };

    void add(disk& where, const std::string& name) {
        const auto path = join_path(path_, name);
        shards_.push_back(std::make_unique<safetensors_weights>(where, path));
        const auto opened = where.open(path, open_mode::read);
        if (!opened) throw opened.error();
        const auto first = first_rows(open_header(**opened, path));
        if (!first)
            throw error(first.error().code(), std::string(first.error().text()))
                .with_where(path)
                .with_hint("not supported: files of ranks that have columns of a tensor, or do not "
                           "say which rows; write them with save_distributed and "
                           "enable_consolidation");
        for (const auto& [tensor, t] : shards_.back()->tensors()) {
            parts_[tensor].push_back({first->at(tensor), rows_of(t.shape), shards_.back().get()});
            const auto [known, is_new] = tensors_.emplace(tensor, t);
            auto a = known->second, b = t;
            if (!a.shape.empty()) a.shape[0] = 0;
            if (!b.shape.empty()) b.shape[0] = 0;
            if (a == b) continue;
            throw error(errc::mismatch,
                        fmt::format("tensor '{}' is {} {} in one file and {} {} in another", tensor,
                                    known->second.dtype, shape_text(known->second.shape), t.dtype,
                                    shape_text(t.shape)))
                .with_where(path)
                .with_hint("the files are of two saves; copy the folder anew");
        }
    }

    void join(const std::string& name, std::vector<part>& parts) {
        std::ranges::sort(parts, {}, [](const part& p) { return std::pair(p.first, p.rows); });
        std::int64_t end = 0;
        for (const auto& p : parts) {
            if (p.first != end)
                throw error(errc::mismatch,
                            fmt::format("rows {} to {} of tensor '{}' are in {}",
                                        std::min(p.first, end), std::max(p.first, end) - 1, name,
                                        p.first > end ? "no file" : "two files"))
                    .with_where(path_)
                    .with_hint("a file of a rank is missing, or files of two saves are here; copy "
                               "the folder anew");
            end += p.rows;
        }
        auto& shape = tensors_.at(name).shape;
        if (!shape.empty()) shape[0] = end;
    }

    void read_rows(const std::string& name, const source_tensor& tensor, std::int64_t first_row,
                   std::int64_t rows, mut_byte_span into) const override {
        const auto row = row_bytes(tensor);
        for (const auto& p : parts_.at(name)) {
            const auto begin = std::max(p.first, first_row);
            const auto end = std::min(p.first + p.rows, first_row + rows);
            if (begin >= end) continue;
            p.file->read(name, begin - p.first, end - begin,
                         into.subspan(row * static_cast<std::uint64_t>(begin - first_row),
                                      row * static_cast<std::uint64_t>(end - begin)));
        }
    }

    std::vector<std::unique_ptr<safetensors_weights>> shards_;
    std::map<std::string, std::vector<part>> parts_;
};

} // namespace skein::train::detail
