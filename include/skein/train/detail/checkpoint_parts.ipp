// SPDX-License-Identifier: Apache-2.0
#pragma once
// The parts of a checkpoint: names of folders, and what the ranks tell each other. Used by the
// other files of <skein/train/checkpoint.hpp> alone.

#include <skein/core/error.hpp>
#include <skein/core/result.hpp>
#include <skein/train/detail/manifest.ipp>
#include <skein/wire/json.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/core.h>

namespace skein::train::detail {

inline constexpr std::string_view manifest_name = "manifest.json";
inline constexpr std::uint64_t max_manifest_bytes = manifest_json.max_bytes;

SKEIN_INLINE std::string step_name(std::uint64_t step) { return fmt::format("step-{:08}", step); }

/// The number in "step-00000120<suffix>" with exactly this suffix.
SKEIN_INLINE std::optional<std::uint64_t> step_of(std::string_view name,
                                                  std::string_view suffix = "") {
    if (!name.starts_with("step-") || !name.ends_with(suffix)) return std::nullopt;
    name.remove_prefix(5);
    name.remove_suffix(suffix.size());
    if (name.size() < 8 || name.size() > 19) return std::nullopt;
    if (name.size() > 8 && name[0] == '0') return std::nullopt; // step_name() writes another one
    std::uint64_t step = 0;
    for (char c : name) {
        if (c < '0' || c > '9') return std::nullopt;
        step = step * 10 + static_cast<std::uint64_t>(c - '0');
    }
    return step;
}

inline constexpr std::string_view part_mark = ".part-";

/// A folder that a save has begun: "step-00000120.part-" and 16 digits of a random number. What
/// people call alike is theirs.
SKEIN_INLINE bool is_part(std::string_view name) {
    const auto at = name.find(part_mark);
    if (at == std::string_view::npos || !step_of(name.substr(0, at))) return false;
    const auto id = name.substr(at + part_mark.size());
    return id.size() == 16 && id.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

SKEIN_INLINE std::string base_name(const std::string& path) {
    return path.substr(path.find_last_of('/') + 1);
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

/// All-gather of what the ranks tell, failures too.
SKEIN_INLINE std::vector<json> gather_all(const checkpoint_world& world, const json& mine) {
    if (world.size == 1) return {mine};
    const auto text = dump_json(mine);
    std::vector<json> all;
    for (auto& blob : world.exchange(as_bytes(std::string_view(text)))) {
        auto parsed = parse_json(blob, {.max_bytes = 256u << 20, .max_depth = 64});
        if (!parsed || !parsed->is_object() || !parsed->contains("ok"))
            throw error(
                errc::malformed,
                fmt::format("rank {} sent a checkpoint message that cannot be read", all.size()));
        all.push_back(std::move(*parsed));
    }
    if (all.size() != static_cast<std::size_t>(world.size))
        throw error(errc::mismatch,
                    fmt::format("{} checkpoint messages from {} ranks", all.size(), world.size));
    return all;
}

/// All-gather of what the ranks tell; throws the first failed rank's error.
SKEIN_INLINE std::vector<json> gather(const checkpoint_world& world, const json& mine) {
    auto all = gather_all(world, mine);
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

} // namespace skein::train::detail
