// SPDX-License-Identifier: Apache-2.0
#pragma once
// How the tensors of a checkpoint lie in its shards: who writes which rows, one shard as a stream,
// and the first row of each tensor of a shard, where PyTorch's HuggingFaceStorageReader looks for
// it. Used by the other files of <skein/train/checkpoint.hpp> alone.
//   source: pytorch, torch/distributed/checkpoint/hf_storage.py (the reader asks for every
//   tensor of a file)

#include <skein/core/crc32c.hpp>
#include <skein/core/disk.hpp>
#include <skein/train/detail/checkpoint_parts.ipp>

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include <fmt/core.h>

namespace skein::train::detail {

inline constexpr const char* sharding_key = "DCP_SHARDING_INFO";

SKEIN_INLINE std::string shape_text(std::span<const std::int64_t> shape) {
    std::string out = "[";
    for (auto extent : shape) out += fmt::format("{}{}", out.size() > 1 ? ", " : "", extent);
    return out + "]";
}

SKEIN_INLINE std::vector<int> deal_tensors(std::span<const tensor_part> tensors, int world_size) {
    std::vector<std::size_t> order;
    for (std::size_t i = 0; i < tensors.size(); ++i)
        if (tensors[i].everywhere || rows_of(tensors[i].shape) == 0) order.push_back(i);
    std::sort(order.begin(), order.end(), [&](auto a, auto b) {
        if (tensors[a].bytes.size() != tensors[b].bytes.size())
            return tensors[a].bytes.size() > tensors[b].bytes.size();
        return tensors[a].name < tensors[b].name;
    });
    std::vector<std::uint64_t> load(static_cast<std::size_t>(world_size), 0);
    std::vector<int> owner(tensors.size(), -1);
    for (auto i : order) {
        const auto least = std::min_element(load.begin(), load.end()) - load.begin();
        owner[i] = static_cast<int>(least);
        load[static_cast<std::size_t>(least)] +=
            tensors[i].bytes.size() + 1; // +1 deals out empty ones
    }
    return owner;
}

/// Equal on all ranks, or they are about to save different things.
SKEIN_INLINE std::uint64_t plan_hash(const checkpoint_state& state) {
    std::string text = fmt::format("{};", state.step);
    for (auto& t : state.tensors)
        text += fmt::format("{}|{}|{}|{};", t.name, t.dtype, shape_text(t.shape),
                            t.everywhere ? "everywhere" : "rows");
    const auto bytes = as_bytes(std::string_view(text));
    return std::uint64_t{crc32c(bytes)} << 32 | crc32c(bytes, 0x736b6569);
}

/// The tensor as a message names it.
SKEIN_INLINE error part_error(const std::string& name, const std::string& why) {
    return error(errc::invalid_argument, fmt::format("tensor '{}': {}", name, why));
}

/// The rows that this rank has, as a tensor of a shard: errc::invalid_argument when they, the bytes
/// and the shape do not agree.
SKEIN_INLINE result<tensor_view> view_of_part(const tensor_part& t) {
    const auto bytes = tensor_bytes(t.dtype, t.shape);
    if (!bytes) return part_error(t.name, bytes.error().text());
    const auto total = rows_of(t.shape);
    const auto rows = t.rows == tensor_part::whole ? total : t.rows;
    if (t.first_row < 0 || rows < 0 || rows > total || t.first_row > total - rows)
        return part_error(t.name, fmt::format("{} rows from row {} given, the shape is {}", rows,
                                              t.first_row, shape_text(t.shape)));
    if (t.everywhere && rows != total)
        return part_error(t.name, fmt::format("rows [{}, {}) of {} given, but it is everywhere",
                                              t.first_row, t.first_row + rows, total));
    const auto wanted =
        total == 0 ? 0
                   : *bytes / static_cast<std::uint64_t>(total) * static_cast<std::uint64_t>(rows);
    if (wanted != t.bytes.size())
        return part_error(t.name, fmt::format("{} bytes given, type and shape say {} for {} rows",
                                              t.bytes.size(), wanted, rows));
    if (t.fetch) return part_error(t.name, "the host cannot read it: save a snapshot of it");
    tensor_view view{t.name, t.dtype, t.shape, t.bytes};
    if (!view.shape.empty()) view.shape.front() = rows;
    return view;
}

/// What one rank writes.
struct own_tensors {
    std::vector<tensor_view> views;
    std::string sharding; ///< {name: {"saved_offsets": [first row, 0, ...]}} for every one of them
};

SKEIN_INLINE result<own_tensors> own_part(std::span<const tensor_part> tensors,
                                          const checkpoint_world& world) {
    const auto owner = deal_tensors(tensors, world.size);
    own_tensors mine;
    json offsets = json::object();
    std::set<std::string_view> names;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
        const auto& t = tensors[i];
        // A name that repeats would otherwise be seen only when both copies meet in one shard.
        if (!names.insert(t.name).second)
            return error(errc::invalid_argument,
                         fmt::format("two tensors are called '{}'", t.name));
        auto view = view_of_part(t);
        if (!view) return view.error();
        const bool has_rows = t.rows == tensor_part::whole || t.rows > 0;
        if (owner[i] == -1 ? !has_rows : owner[i] != world.rank) continue;
        json saved = json::array();
        for (std::size_t k = 0; k < t.shape.size(); ++k) saved.push_back(k == 0 ? t.first_row : 0);
        offsets[t.name] = {{"saved_offsets", std::move(saved)}};
        mine.views.push_back(std::move(*view));
    }
    mine.sharding = dump_json(offsets);
    return mine;
}

/// The first row of every tensor of a shard, as its own header tells.
SKEIN_INLINE result<std::map<std::string, std::int64_t>> first_rows(
    const safetensors_header& head) {
    const auto found = head.metadata.find(sharding_key);
    if (found == head.metadata.end())
        return error(errc::malformed, fmt::format("the header has no {}", sharding_key));
    const auto info = parse_json(std::string_view(found->second),
                                 {.max_bytes = max_safetensors_header, .max_depth = 8});
    if (!info) return info.error();
    std::map<std::string, std::int64_t> out;
    for (const auto& t : head.tensors) {
        const auto bad = [&] {
            return error(errc::malformed,
                         fmt::format("{} does not give the first row of tensor '{}' of shape {}",
                                     sharding_key, t.name, shape_text(t.shape)));
        };
        if (!info->is_object() || !info->contains(t.name)) return bad();
        const auto offsets = json_uints((*info)[t.name], "saved_offsets", 64);
        if (!offsets || offsets->size() != t.shape.size()) return bad();
        for (std::size_t k = 0; k < offsets->size(); ++k)
            if ((*offsets)[k] > (k == 0 ? std::uint64_t{INT64_MAX} : 0)) return bad();
        out.emplace(t.name, offsets->empty() ? 0 : static_cast<std::int64_t>(offsets->front()));
    }
    return out;
}

/// The table of a manifest of format 1: each tensor is whole in one shard.
SKEIN_INLINE result<void> add_whole_tensors(const safetensors_header& head, std::size_t shard,
                                            tensor_table& tensors) {
    for (const auto& t : head.tensors) {
        const auto part = part_entry{.shard = shard, .first_row = 0, .rows = rows_of(t.shape)};
        if (!tensors.emplace(t.name, tensor_entry{t.dtype, t.shape, {part}}).second)
            return error(errc::malformed, fmt::format("tensor '{}' is in two shards", t.name));
    }
    return {};
}

/// True when a shard's header has of a tensor what the manifest says.
SKEIN_INLINE bool fits(const tensor_info& t, std::int64_t first_row, const tensor_entry& whole,
                       const part_entry& part) {
    auto shape = whole.shape;
    if (!shape.empty()) shape.front() = part.rows;
    return t.dtype == whole.dtype && t.shape == shape && first_row == part.first_row;
}

/// Joins small writes, so that many small tensors do not become many system calls.
class shard_writer {
public:
    shard_writer(file& out, std::uint64_t chunk_bytes, std::function<bool()> is_given_up = {})
        : file_(out), sums_(chunk_bytes), is_given_up_(std::move(is_given_up)) {}

    result<void> operator()(byte_span part) {
        while (!part.empty()) {
            if (pending_.empty() && part.size() >= block) {
                if (auto done = put(part.first(block)); !done) return done;
                part = part.subspan(block);
                continue;
            }
            const auto take = std::min<std::size_t>(block - pending_.size(), part.size());
            append(pending_, part.first(take));
            part = part.subspan(take);
            if (pending_.size() == block)
                if (auto done = flush(); !done) return done;
        }
        return {};
    }
    result<void> flush() {
        auto done = put(pending_);
        pending_.clear();
        return done;
    }
    chunk_checksums& sums() noexcept { return sums_; }

private:
    static constexpr std::size_t block = 1u << 20;

    result<void> put(byte_span part) {
        if (part.empty()) return {};
        if (is_given_up_ && is_given_up_()) return error(errc::aborted, "the save is given up");
        const auto offset = sums_.bytes();
        sums_.add(part);
        return file_.write_at(offset, part);
    }

    file& file_;
    chunk_checksums sums_;
    std::function<bool()> is_given_up_;
    byte_buffer pending_;
};

SKEIN_INLINE result<safetensors_header> read_shard_head(file& from, std::uint64_t file_bytes) {
    byte_buffer head(std::min<std::uint64_t>(file_bytes, 8));
    auto got = from.read_at(0, head);
    if (!got) return got.error();
    const auto head_bytes = safetensors_head_bytes(head, file_bytes);
    if (!head_bytes) return head_bytes.error();
    head.resize(*head_bytes);
    got = from.read_at(0, head);
    if (!got) return got.error();
    head.resize(*got);
    return parse_safetensors_head(head, file_bytes);
}

} // namespace skein::train::detail
