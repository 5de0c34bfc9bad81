// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/train/verify_checkpoint.hpp>.

#include <skein/core/error.hpp>
#include <skein/train/checkpoint.hpp>
#include <skein/train/detail/checkpoint_parts.ipp>

#include <algorithm>
#include <utility>

#include <fmt/core.h>

namespace skein::train {

namespace detail {

/// The checksums of the chunks that a file has, at most `bytes` of it.
SKEIN_INLINE result<std::vector<std::uint32_t>> sum_chunks(file& from, std::uint64_t bytes,
                                                           std::uint64_t chunk_bytes) {
    chunk_checksums sums(chunk_bytes);
    byte_buffer block(1u << 20);
    while (sums.bytes() < bytes) {
        const auto want = std::min<std::uint64_t>(block.size(), bytes - sums.bytes());
        const auto got = from.read_at(sums.bytes(), mut_byte_span(block).first(want));
        if (!got) return got.error();
        if (*got == 0) break; // it became shorter meanwhile
        sums.add(byte_span(block).first(*got));
    }
    return sums.finish();
}

SKEIN_INLINE void verify_shard(disk& where, const std::string& path, const shard_entry& shard,
                               std::uint64_t chunk_bytes, verified_checkpoint& into) {
    const auto found = [&](std::string text, std::optional<std::uint64_t> chunk = std::nullopt) {
        into.damage.push_back({path, chunk, std::move(text)});
    };
    auto opened = where.open(path, open_mode::read);
    if (!opened) return found(opened.error().text());
    const auto size = (*opened)->size();
    if (!size) return found(size.error().text());
    if (*size != shard.bytes)
        found(fmt::format("{} bytes, the manifest says {} ({})", *size, shard.bytes,
                          *size < shard.bytes ? "truncated" : "too long"));
    const auto sums = sum_chunks(**opened, std::min(*size, shard.bytes), chunk_bytes);
    if (!sums) return found(sums.error().text());
    into.chunks += sums->size();
    into.bytes += std::min(*size, shard.bytes);
    for (std::size_t chunk = 0; chunk < sums->size(); ++chunk) {
        const auto begin = chunk * chunk_bytes;
        const auto end = begin + std::min(chunk_bytes, shard.bytes - begin);
        const auto here = (*sums)[chunk];
        if (here != shard.crcs[chunk])
            found(fmt::format("chunk {} (bytes {} to {}) has checksum {:08x}, the manifest says "
                              "{:08x}",
                              chunk, begin, end, here, shard.crcs[chunk]),
                  chunk);
    }
}

} // namespace detail

SKEIN_INLINE verified_checkpoint verify_checkpoint(disk& where, const std::string& folder) {
    verified_checkpoint out;
    const auto path = join_path(folder, detail::manifest_name);
    const auto bytes = where.read_whole(path, detail::max_manifest_bytes);
    auto manifest = bytes ? parse_manifest(*bytes) : result<checkpoint_manifest>(bytes.error());
    if (!manifest) {
        out.damage.push_back({path, std::nullopt, manifest.error().text()});
        return out;
    }
    for (const auto& shard : manifest->shards)
        detail::verify_shard(where, join_path(folder, shard.name), shard, manifest->chunk_bytes,
                             out);
    out.manifest = std::move(*manifest);
    if (!out.is_whole()) return out;
    // Bytes are as they were written; headers and manifest have to agree, too.
    if (const auto opened = checkpointer::open(where, folder, false); !opened) {
        const auto& why = opened.error();
        out.damage.push_back({why.where().empty() ? path : why.where(), std::nullopt, why.text()});
    }
    return out;
}

} // namespace skein::train
