// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/train/manifest.hpp>.
//
// The file is the dump of all members, cut before its closing brace, then the member "self": the
// checksum of every byte before it. So every bit of the file is covered.

#include <skein/core/crc32c.hpp>
#include <skein/core/error.hpp>
#include <skein/train/safetensors.hpp>
#include <skein/wire/json.hpp>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include <fmt/core.h>

namespace skein::train {

namespace detail {

SKEIN_INLINE json shard_json(const shard_entry& shard) {
    return {{"name", shard.name}, {"bytes", shard.bytes}, {"crc32c", shard.crcs}};
}

SKEIN_INLINE result<shard_entry> parse_shard_entry(const json& value, std::uint64_t chunk_bytes) {
    shard_entry shard;
    auto name = json_string(value, "name");
    if (!name) return name.error();
    auto bytes = json_uint(value, "bytes");
    if (!bytes) return bytes.error();
    auto crcs = json_uints(value, "crc32c");
    if (!crcs) return crcs.error();

    shard.name = std::move(*name);
    shard.bytes = *bytes;
    if (shard.name.empty() || shard.name.front() == '.' ||
        shard.name.find('/') != std::string::npos)
        return error(errc::malformed,
                     fmt::format("shard name '{}' is not a plain file name", shard.name));
    const auto chunks = shard.bytes / chunk_bytes + (shard.bytes % chunk_bytes != 0 ? 1 : 0);
    if (crcs->size() != chunks)
        return error(errc::malformed, fmt::format("{}: {} checksums for {} chunks", shard.name,
                                                  crcs->size(), chunks));
    for (auto crc : *crcs) {
        if (crc > UINT32_MAX) return error(errc::malformed, "a checksum does not fit 32 bits");
        shard.crcs.push_back(static_cast<std::uint32_t>(crc));
    }
    return shard;
}

SKEIN_INLINE result<void> check_parts(const std::string& name, tensor_entry& tensor,
                                      std::size_t shards) {
    const auto bad = [&](std::string why) {
        return error(errc::malformed, fmt::format("tensor '{}': {}", name, why));
    };
    const auto total = rows_of(tensor.shape);
    std::set<std::size_t> seen;
    for (const auto& part : tensor.parts) {
        if (part.shard >= shards)
            return bad(fmt::format("shard {} of {} shards", part.shard, shards));
        if (!seen.insert(part.shard).second)
            return bad(fmt::format("two parts are in shard {}", part.shard));
        if (part.first_row < 0 || part.rows < 0 || part.rows > total ||
            part.first_row > total - part.rows || (part.rows == 0 && total > 0))
            return bad(fmt::format("{} rows from row {} in shard {}, the tensor has {}", part.rows,
                                   part.first_row, part.shard, total));
    }
    std::ranges::sort(tensor.parts, {}, &part_entry::first_row);
    std::int64_t end = 0;
    for (std::size_t i = 0; i < tensor.parts.size(); ++i) {
        const auto& part = tensor.parts[i];
        if (part.first_row > end)
            return bad(fmt::format("rows [{}, {}) are in no shard", end, part.first_row));
        if (part.first_row < end || (part.rows == 0 && i > 0))
            return bad(fmt::format("rows [{}, {}) are in shards {} and {}", part.first_row,
                                   std::min(end, part.first_row + part.rows),
                                   tensor.parts[i - 1].shard, part.shard));
        end += part.rows;
    }
    if (tensor.parts.empty() || end < total)
        return bad(fmt::format("rows [{}, {}) are in no shard", end, total));
    return {};
}

SKEIN_INLINE json table_json(const tensor_table& tensors) {
    json out = json::object();
    for (const auto& [name, tensor] : tensors) {
        json parts = json::array();
        for (const auto& part : tensor.parts)
            parts.push_back(
                {{"shard", part.shard}, {"first_row", part.first_row}, {"rows", part.rows}});
        out[name] = {{"dtype", tensor.dtype}, {"shape", tensor.shape}, {"parts", std::move(parts)}};
    }
    return out;
}

/// A row, a number of rows or an extent: a whole number of 63 bits.
SKEIN_INLINE result<std::int64_t> json_row(const json& object, const std::string& key) {
    const auto value = json_uint(object, key);
    if (!value) return value.error();
    if (*value > INT64_MAX)
        return error(errc::malformed, fmt::format("'{}' does not fit 63 bits", key));
    return static_cast<std::int64_t>(*value);
}

SKEIN_INLINE result<tensor_entry> parse_tensor_entry(const std::string& name, const json& value,
                                                     std::size_t shards) {
    const auto bad = [&](const error& why) {
        return error(errc::malformed, fmt::format("tensor '{}': {}", name, why.text()));
    };
    const auto dtype = json_string(value, "dtype");
    if (!dtype) return bad(dtype.error());
    const auto shape = json_uints(value, "shape", 64);
    if (!shape) return bad(shape.error());

    tensor_entry tensor{.dtype = *dtype, .shape = {}, .parts = {}};
    for (const auto extent : *shape) {
        if (extent > INT64_MAX)
            return bad(error(errc::malformed, "an extent does not fit 63 bits"));
        tensor.shape.push_back(static_cast<std::int64_t>(extent));
    }
    if (const auto bytes = tensor_bytes(tensor.dtype, tensor.shape); !bytes)
        return bad(bytes.error());
    if (!value.contains("parts") || !value["parts"].is_array())
        return bad(error(errc::malformed, "'parts' is missing or is not an array"));
    for (const auto& item : value["parts"]) {
        const auto shard = json_uint(item, "shard");
        if (!shard) return bad(shard.error());
        const auto first = json_row(item, "first_row"), rows = json_row(item, "rows");
        for (const auto* field : {&first, &rows})
            if (!*field) return bad(field->error());
        tensor.parts.push_back({.shard = *shard, .first_row = *first, .rows = *rows});
    }
    if (auto done = check_parts(name, tensor, shards); !done) return done.error();
    return tensor;
}

SKEIN_INLINE result<tensor_table> parse_table(const json& manifest, std::size_t shards) {
    if (!manifest.contains("tensors") || !manifest["tensors"].is_object())
        return error(errc::malformed, "'tensors' is missing or is not an object");
    tensor_table out;
    for (const auto& [name, value] : manifest["tensors"].items()) {
        auto tensor = parse_tensor_entry(name, value, shards);
        if (!tensor) return tensor.error();
        out.emplace(name, std::move(*tensor));
    }
    return out;
}

inline constexpr json_limits manifest_json{.max_bytes = 256u << 20, .max_depth = 64};
SKEIN_INLINE std::string make_manifest_tail(std::string_view body) {
    return fmt::format(",\n  \"self\": \"{:08x}\"\n}}\n", crc32c(as_bytes(body)));
}

} // namespace detail

SKEIN_INLINE void chunk_checksums::add(byte_span part) {
    while (!part.empty()) {
        const auto take = std::min<std::uint64_t>(chunk_ - filled_, part.size());
        current_ = crc32c(part.first(take), current_);
        filled_ += take;
        bytes_ += take;
        part = part.subspan(take);
        if (filled_ == chunk_) close_chunk();
    }
}

SKEIN_INLINE std::vector<std::uint32_t> chunk_checksums::finish() {
    if (filled_ > 0) close_chunk();
    return std::move(crcs_);
}

SKEIN_INLINE void chunk_checksums::close_chunk() {
    crcs_.push_back(current_);
    current_ = 0;
    filled_ = 0;
}

SKEIN_INLINE std::string dump_manifest(const checkpoint_manifest& m) {
    json shards = json::array();
    for (auto& shard : m.shards) shards.push_back(detail::shard_json(shard));
    json metrics = json::object();
    for (auto& [name, value] : m.metrics)
        if (std::isfinite(value)) metrics[name] = value;
    const json whole = {{"format", checkpoint_manifest::format},
                        {"step", m.step},
                        {"world_size", m.world_size},
                        {"chunk_bytes", m.chunk_bytes},
                        {"shards", std::move(shards)},
                        {"tensors", detail::table_json(m.tensors)},
                        {"metrics", std::move(metrics)},
                        {"extra", parse_json(m.extra, detail::manifest_json).value()},
                        {"config_hash", m.config_hash},
                        {"skein", m.skein_version},
                        {"wall_time", m.wall_time}};
    std::string text = dump_json(whole, 2);
    text.resize(text.size() - 2); // "\n}"
    return text + detail::make_manifest_tail(text);
}

SKEIN_INLINE result<checkpoint_manifest> parse_manifest(byte_span bytes) {
    const auto text = as_text(bytes);
    const auto tail = detail::manifest_tail.size();
    if (text.size() < tail || text.substr(text.size() - tail) !=
                                  detail::make_manifest_tail(text.substr(0, text.size() - tail)))
        return error(errc::corrupt, "the manifest is cut off or its checksum does not fit");
    const auto parsed = parse_json(text, detail::manifest_json);
    if (!parsed) return parsed.error();
    const json& j = *parsed;

    const auto format = json_string(j, "format");
    if (!format) return format.error();
    checkpoint_manifest m;
    if (*format == checkpoint_manifest::format_1)
        m.version = 1;
    else if (*format != checkpoint_manifest::format)
        return error(errc::not_supported,
                     fmt::format("checkpoint format '{}' is not supported", *format))
            .with_hint(fmt::format("this build reads {} and {}", checkpoint_manifest::format_1,
                                   checkpoint_manifest::format));
    const auto step = json_uint(j, "step"), world = json_uint(j, "world_size");
    const auto chunk = json_uint(j, "chunk_bytes");
    for (auto* field : {&step, &world, &chunk})
        if (!*field) return field->error();
    const auto hash = json_string(j, "config_hash"), version = json_string(j, "skein");
    for (auto* field : {&hash, &version})
        if (!*field) return field->error();
    const auto wall = json_double(j, "wall_time");
    if (!wall) return wall.error();
    if (*chunk == 0 || *world == 0 || *world > 1'000'000)
        return error(errc::malformed, "chunk_bytes or world_size is out of range");
    if (!j.contains("shards") || !j["shards"].is_array())
        return error(errc::malformed, "'shards' is missing or is not an array");
    if (!j.contains("extra") || !j.contains("metrics") || !j["metrics"].is_object())
        return error(errc::malformed, "'extra' or 'metrics' is missing");

    m.step = *step;
    m.world_size = static_cast<int>(*world);
    m.chunk_bytes = *chunk;
    m.config_hash = *hash;
    m.skein_version = *version;
    m.wall_time = *wall;
    m.extra = dump_json(j["extra"]);
    for (auto& item : j["shards"]) {
        auto shard = detail::parse_shard_entry(item, m.chunk_bytes);
        if (!shard) return shard.error();
        m.shards.push_back(std::move(*shard));
    }
    if (m.version > 1) {
        auto tensors = detail::parse_table(j, m.shards.size());
        if (!tensors) return tensors.error();
        m.tensors = std::move(*tensors);
    }
    for (auto& [name, value] : j["metrics"].items())
        if (value.is_number()) m.metrics[name] = value.get<double>();
    return m;
}

} // namespace skein::train
