// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/train/manifest.hpp>.
//
// The file is the dump of all members, cut before its closing brace, then the member "self": the
// checksum of every byte before it. So every bit of the file is covered.

#include <skein/core/crc32c.hpp>
#include <skein/core/error.hpp>
#include <skein/wire/json.hpp>

#include <algorithm>
#include <cmath>
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
    if (*format != checkpoint_manifest::format)
        return error(errc::not_supported,
                     fmt::format("checkpoint format '{}' is not supported", *format))
            .with_hint(fmt::format("this build reads {}", checkpoint_manifest::format));
    checkpoint_manifest m;
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
    for (auto& [name, value] : j["metrics"].items())
        if (value.is_number()) m.metrics[name] = value.get<double>();
    return m;
}

} // namespace skein::train
