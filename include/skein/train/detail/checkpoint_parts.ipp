// SPDX-License-Identifier: Apache-2.0
#pragma once
// The parts of a checkpoint: names of folders, which rank writes what, what the ranks tell each other,
// and one shard written or verified as a stream. Used by <skein/train/detail/checkpoint.ipp> alone.

#include <skein/core/crc32c.hpp>
#include <skein/core/disk.hpp>
#include <skein/core/error.hpp>
#include <skein/core/result.hpp>
#include <skein/train/detail/manifest.ipp>
#include <skein/wire/json.hpp>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/core.h>

namespace skein::train::detail {

inline constexpr std::string_view manifest_name = "manifest.json";
inline constexpr std::uint64_t max_manifest_bytes = 64u << 20;

SKEIN_INLINE std::string step_name(std::uint64_t step) { return fmt::format("step-{:08}", step); }

/// The number in "step-00000120<suffix>" with exactly this suffix.
SKEIN_INLINE std::optional<std::uint64_t> step_of(std::string_view name,
                                                  std::string_view suffix = "") {
    if (!name.starts_with("step-") || !name.ends_with(suffix)) return std::nullopt;
    name.remove_prefix(5);
    name.remove_suffix(suffix.size());
    if (name.size() < 8 || name.size() > 19) return std::nullopt;
    std::uint64_t step = 0;
    for (char c : name) {
        if (c < '0' || c > '9') return std::nullopt;
        step = step * 10 + static_cast<std::uint64_t>(c - '0');
    }
    return step;
}

SKEIN_INLINE std::string base_name(const std::string& path) {
    return path.substr(path.find_last_of('/') + 1);
}

SKEIN_INLINE std::string shape_text(std::span<const std::int64_t> shape) {
    std::string out = "[";
    for (auto extent : shape) out += fmt::format("{}{}", out.size() > 1 ? ", " : "", extent);
    return out + "]";
}

SKEIN_INLINE std::vector<int> deal_tensors(std::span<const tensor_view> tensors, int world_size) {
    std::vector<std::size_t> order(tensors.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::sort(order.begin(), order.end(), [&](auto a, auto b) {
        if (tensors[a].bytes.size() != tensors[b].bytes.size())
            return tensors[a].bytes.size() > tensors[b].bytes.size();
        return tensors[a].name < tensors[b].name;
    });
    std::vector<std::uint64_t> load(static_cast<std::size_t>(world_size), 0);
    std::vector<int> owner(tensors.size(), 0);
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
        text += fmt::format("{}|{}|{};", t.name, t.dtype, shape_text(t.shape));
    const auto bytes = as_bytes(std::string_view(text));
    return std::uint64_t{crc32c(bytes)} << 32 | crc32c(bytes, 0x736b6569);
}

// What the ranks tell each other is one JSON object: {"ok": true, ...} or the parts of an error.
SKEIN_INLINE json outcome(const result<void>& done) {
    if (done) return {{"ok", true}};
    const auto& e = done.error();
    return {{"ok", false},        {"code", static_cast<int>(e.code())},
            {"text", e.text()},   {"where", e.where()},
            {"cause", e.cause()}, {"hint", e.hint()}};
}

SKEIN_INLINE error remote_outcome(const json& said, int rank, int world_size) {
    auto text = [&](const char* key) { return said.value(key, std::string()); };
    auto e = error(static_cast<errc>(said.value("code", static_cast<int>(errc::unknown))),
                   world_size > 1 ? fmt::format("rank {}: {}", rank, text("text")) : text("text"));
    e.with_where(text("where")).with_cause(text("cause")).with_hint(text("hint"));
    return e;
}

/// All-gather of what the ranks tell; throws the first failed rank's error.
SKEIN_INLINE std::vector<json> gather(const checkpoint_world& world, const json& mine) {
    if (world.size == 1) {
        if (!mine["ok"].get<bool>()) throw remote_outcome(mine, 0, 1);
        return {mine};
    }
    const auto text = dump_json(mine);
    std::vector<json> all;
    for (auto& blob : world.exchange(as_bytes(std::string_view(text)))) {
        auto parsed = parse_json(blob, {.max_bytes = 256u << 20, .max_depth = 64});
        if (!parsed || !parsed->is_object() || !parsed->contains("ok"))
            throw error(errc::malformed,
                        fmt::format("rank {} sent a checkpoint message that cannot be "
                                    "read",
                                    all.size()));
        all.push_back(std::move(*parsed));
    }
    if (all.size() != static_cast<std::size_t>(world.size))
        throw error(errc::mismatch,
                    fmt::format("{} checkpoint messages from {} ranks", all.size(), world.size));
    for (std::size_t r = 0; r < all.size(); ++r)
        if (!all[r]["ok"].get<bool>())
            throw remote_outcome(all[r], static_cast<int>(r), world.size);
    return all;
}

/// Puts `what` in front of the text and keeps the rest.
SKEIN_INLINE error with_context(std::string what, const error& e) {
    return error(e.code(), what + ": " + e.text())
        .with_where(e.where())
        .with_cause(e.cause())
        .with_hint(e.hint());
}

/// Joins small writes, so that many small tensors do not become many system calls.
class shard_writer {
public:
    shard_writer(file& out, std::uint64_t chunk_bytes) : file_(out), sums_(chunk_bytes) {}

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
        const auto offset = sums_.bytes();
        sums_.add(part);
        return file_.write_at(offset, part);
    }

    file& file_;
    chunk_checksums sums_;
    byte_buffer pending_;
};

/// Reads a shard once and compares size and every chunk.
SKEIN_INLINE result<void> verify_shard(file& from, const shard_entry& shard,
                                       std::uint64_t chunk_bytes) {
    chunk_checksums sums(chunk_bytes);
    byte_buffer block(1u << 20);
    while (sums.bytes() < shard.bytes) {
        const auto want = std::min<std::uint64_t>(block.size(), shard.bytes - sums.bytes());
        const auto got = from.read_at(sums.bytes(), mut_byte_span(block).first(want));
        if (!got) return got.error();
        if (*got == 0) return error(errc::corrupt, "the file ended while it was read");
        sums.add(byte_span(block).first(*got));
    }
    const auto found = sums.finish();
    for (std::size_t i = 0; i < found.size(); ++i)
        if (found[i] != shard.crcs[i])
            return error(
                errc::corrupt,
                fmt::format("chunk {} (bytes {} to {}) has checksum {:08x}, the manifest says "
                            "{:08x}",
                            i, i * chunk_bytes,
                            std::min<std::uint64_t>((i + 1) * chunk_bytes, shard.bytes), found[i],
                            shard.crcs[i]));
    return {};
}

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
