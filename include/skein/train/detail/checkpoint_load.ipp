// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/train/checkpoint.hpp>: opening, verifying and reading.
//
// The ranks verify the chunks of a checkpoint together and must come to one verdict, that of a rank
// which goes through all of it alone: the first failure in its order (manifest; then of each shard
// size, chunks, header) counts, whoever met it.

#include <skein/core/log.hpp>
#include <skein/train/detail/checkpoint_table.ipp>

#include <algorithm>
#include <compare>
#include <ranges>
#include <utility>

#include <fmt/core.h>

namespace skein::train {

// ---- loaded_checkpoint --------------------------------------------------------------------------

SKEIN_INLINE const tensor_entry& loaded_checkpoint::entry(const std::string& name) const {
    auto it = manifest_.tensors.find(name);
    if (it == manifest_.tensors.end())
        throw error(errc::not_found, fmt::format("the checkpoint has no tensor '{}'", name))
            .with_where(path_)
            .with_hint("was it written by another model?");
    return it->second;
}

SKEIN_INLINE void loaded_checkpoint::read_rows(const std::string& name, std::int64_t first_row,
                                               std::int64_t rows, mut_byte_span into) const {
    const auto& t = entry(name);
    const auto total = detail::rows_of(t.shape);
    if (first_row < 0 || rows < 0 || rows > total || first_row > total - rows)
        throw error(errc::invalid_argument,
                    fmt::format("{} rows from row {} of tensor '{}' of shape {}", rows, first_row,
                                name, detail::shape_text(t.shape)))
            .with_where(path_);
    const auto bytes = tensor_bytes(t.dtype, t.shape).value();
    const auto row = total == 0 ? 0 : bytes / static_cast<std::uint64_t>(total);
    if (row * static_cast<std::uint64_t>(rows) != into.size())
        throw error(errc::mismatch,
                    fmt::format("tensor '{}' was saved as {} {} ({} bytes{}), the model has "
                                "{} bytes",
                                name, t.dtype, detail::shape_text(t.shape), row * rows,
                                rows == total ? "" : fmt::format(" in {} rows", rows), into.size()))
            .with_where(path_);
    if (into.empty()) return;
    const auto& offsets = offsets_.at(name);
    for (std::size_t i = 0; i < t.parts.size(); ++i) {
        const auto& part = t.parts[i];
        const auto begin = std::max(first_row, part.first_row);
        const auto end = std::min(first_row + rows, part.first_row + part.rows);
        if (begin >= end) continue;
        const auto piece = into.subspan(row * (begin - first_row), row * (end - begin));
        const auto got =
            shards_[part.shard]->read_at(offsets[i] + row * (begin - part.first_row), piece);
        if (!got) throw got.error();
        if (*got != piece.size())
            throw error(errc::corrupt, fmt::format("tensor '{}' is cut off after {} of {} bytes",
                                                   name, *got, piece.size()))
                .with_where(join_path(path_, manifest_.shards[part.shard].name));
    }
}

SKEIN_INLINE void loaded_checkpoint::read(const std::string& name, std::string_view dtype,
                                          std::span<const std::int64_t> shape,
                                          std::int64_t first_row, std::int64_t rows,
                                          mut_byte_span into) const {
    const auto& t = entry(name);
    if (t.dtype != dtype || !std::ranges::equal(t.shape, shape))
        throw error(errc::mismatch,
                    fmt::format("tensor '{}' was saved as {} {}, the model has {} {}", name,
                                t.dtype, detail::shape_text(t.shape), dtype,
                                detail::shape_text(shape)))
            .with_where(path_)
            .with_hint("start the run with the settings it was saved with");
    read_rows(name, first_row, rows, into);
}

SKEIN_INLINE void loaded_checkpoint::read(const std::string& name, std::string_view dtype,
                                          std::span<const std::int64_t> shape,
                                          mut_byte_span into) const {
    read(name, dtype, shape, 0, detail::rows_of(entry(name).shape), into);
}

SKEIN_INLINE void loaded_checkpoint::read(const std::string& name, mut_byte_span into) const {
    read_rows(name, 0, detail::rows_of(entry(name).shape), into);
}

SKEIN_INLINE byte_buffer loaded_checkpoint::read(const std::string& name) const {
    const auto& t = entry(name);
    byte_buffer bytes(tensor_bytes(t.dtype, t.shape).value());
    read(name, mut_byte_span(bytes));
    return bytes;
}

// ---- opening ------------------------------------------------------------------------------------

namespace detail {

/// The chunks that one rank verifies: those whose number, counted over all shards, is `index`
/// modulo `count`; none if count is 0.
struct verify_share {
    std::uint64_t index = 0, count = 1;
};

/// How far one came: the manifest is shard 0, shard i is i + 1; of a shard, what it is on disk is
/// stage 0, its chunk i is i + 1.
struct open_position {
    std::uint64_t shard = 0, stage = 0;
    static constexpr std::uint64_t header = UINT64_MAX;

    /// Found in bytes that this rank alone has read.
    [[nodiscard]] bool in_chunk() const noexcept { return stage != 0 && stage != header; }
    friend auto operator<=>(const open_position&, const open_position&) = default;
};

struct open_failure {
    error why;
    open_position at{};
};

/// The folder as rank 0 sees it.
struct checkpoint_listing {
    std::vector<std::uint64_t> steps; ///< newest first
    bool any_aside = false;           ///< there are .broken ones
};

/// Reads one chunk and compares it.
SKEIN_INLINE result<void> verify_chunk(file& from, const shard_entry& shard, std::uint64_t chunk,
                                       std::uint64_t chunk_bytes, byte_buffer& block) {
    const auto begin = chunk * chunk_bytes;
    const auto end = begin + std::min(chunk_bytes, shard.bytes - begin);
    std::uint32_t found = 0;
    for (auto at = begin; at < end;) {
        const auto want = std::min<std::uint64_t>(block.size(), end - at);
        const auto got = from.read_at(at, mut_byte_span(block).first(want));
        if (!got) return got.error();
        if (*got == 0) return error(errc::corrupt, "the file ended while it was read");
        found = crc32c(byte_span(block).first(*got), found);
        at += *got;
    }
    if (found == shard.crcs[chunk]) return {};
    return error(errc::corrupt,
                 fmt::format("chunk {} (bytes {} to {}) has checksum {:08x}, the manifest says "
                             "{:08x}",
                             chunk, begin, end, found, shard.crcs[chunk]));
}

/// A shard whose chunks of this share are verified.
struct opened_shard {
    std::unique_ptr<file> from;
    safetensors_header head;
};

/// Opens shard i, whose first chunk is number first_chunk of the checkpoint.
SKEIN_INLINE std::optional<open_failure> open_shard(disk& where, const std::string& path,
                                                    const checkpoint_manifest& manifest,
                                                    std::size_t i, const verify_share& share,
                                                    std::uint64_t first_chunk, opened_shard& out) {
    const auto& shard = manifest.shards[i];
    const auto refuse = [&](const error& why, std::uint64_t stage) {
        return open_failure{error(why).with_where(path), {i + 1, stage}};
    };
    auto opened = where.open(path, open_mode::read);
    if (!opened) return open_failure{opened.error(), {i + 1, 0}};
    const auto size = (*opened)->size();
    if (!size) return open_failure{size.error(), {i + 1, 0}};
    if (*size != shard.bytes)
        return refuse(error(errc::corrupt,
                            fmt::format("{} bytes, the manifest says {} ({})", *size, shard.bytes,
                                        *size < shard.bytes ? "truncated" : "too long")),
                      0);
    byte_buffer block(std::min<std::uint64_t>(1u << 20, manifest.chunk_bytes));
    for (std::uint64_t chunk = 0; chunk < shard.crcs.size() && share.count > 0; ++chunk)
        if ((first_chunk + chunk) % share.count == share.index)
            if (auto done = verify_chunk(**opened, shard, chunk, manifest.chunk_bytes, block);
                !done)
                return refuse(done.error(), chunk + 1);
    auto head = read_shard_head(**opened, shard.bytes);
    if (!head) return refuse(head.error(), open_position::header);
    out = {std::move(*opened), std::move(*head)};
    return std::nullopt;
}

/// Where the parts of shard i begin in it; the header must have what the manifest says, and nothing
/// else.
SKEIN_INLINE result<void> locate(const safetensors_header& head, std::size_t shard,
                                 checkpoint_manifest& manifest,
                                 std::map<std::string, std::vector<std::uint64_t>>& offsets) {
    std::map<std::string, std::int64_t> rows; // none in format 1: all begin with row 0
    if (manifest.version == 1) {
        if (auto done = add_whole_tensors(head, shard, manifest.tensors); !done) return done;
    } else {
        auto told = first_rows(head);
        if (!told) return told.error();
        rows = std::move(*told);
    }
    for (const auto& t : head.tensors) {
        const auto found = manifest.tensors.find(t.name);
        const auto bad = error(
            errc::malformed, fmt::format("tensor '{}' ({} {}) is not what the manifest says of it",
                                         t.name, t.dtype, shape_text(t.shape)));
        if (found == manifest.tensors.end()) return bad;
        const auto& whole = found->second;
        const auto part = std::ranges::find(whole.parts, shard, &part_entry::shard);
        const auto first_row = manifest.version == 1 ? 0 : rows.at(t.name);
        if (part == whole.parts.end() || !fits(t, first_row, whole, *part)) return bad;
        auto& at = offsets[t.name];
        at.resize(whole.parts.size());
        at[static_cast<std::size_t>(part - whole.parts.begin())] = t.offset;
    }
    return {};
}

/// Every part of the manifest was found in its shard.
SKEIN_INLINE result<void> all_located(
    const checkpoint_manifest& manifest,
    const std::map<std::string, std::vector<std::uint64_t>>& offsets) {
    for (const auto& [name, tensor] : manifest.tensors) {
        const auto at = offsets.find(name);
        for (std::size_t i = 0; i < tensor.parts.size(); ++i)
            if (at == offsets.end() || at->second[i] == 0)
                return error(errc::malformed,
                             fmt::format("tensor '{}' is not in {}", name,
                                         manifest.shards[tensor.parts[i].shard].name));
    }
    return {};
}

/// What all ranks conclude from what each of them met: nothing, or why the checkpoint is broken.
/// Throws what does not mean that it is broken: a newer format, a missing permission, a disk that
/// fails to answer, or files that rank 0 sees and another rank does not.
SKEIN_INLINE std::optional<error> verdict(const std::vector<json>& all) {
    const auto position = [&](std::size_t r) {
        const auto at = json_uints(all[r], "at", 2).value();
        return at.size() == 2 ? open_position{at[0], at[1]} : open_position{};
    };
    const auto size = static_cast<int>(all.size());
    std::optional<std::size_t> first, alone;
    for (std::size_t r = 0; r < all.size(); ++r) {
        if (all[r]["ok"].get<bool>()) continue;
        if (r != 0 && !position(r).in_chunk()) {
            if (!alone) alone = r;
        } else if (!first || position(r) < position(*first)) {
            first = r;
        }
    }
    if (!first && !alone) return std::nullopt;
    if (!first)
        throw remote_outcome(all[*alone], static_cast<int>(*alone), size)
            .with_hint("every rank must see the run folder: put it on a file system all hosts "
                       "share");
    auto why = remote_outcome(all[*first], 0, 1);
    if (why.code() == errc::corrupt || why.code() == errc::malformed ||
        why.code() == errc::not_found || why.code() == errc::too_large)
        return why;
    throw remote_outcome(all[*first], static_cast<int>(*first), size);
}

} // namespace detail

SKEIN_INLINE std::optional<detail::open_failure> checkpointer::open_share(
    disk& where, const std::string& path, const detail::verify_share& share,
    loaded_checkpoint& out) {
    const auto manifest_path = join_path(path, detail::manifest_name);
    const auto bytes = where.read_whole(manifest_path, detail::max_manifest_bytes);
    if (!bytes) return detail::open_failure{bytes.error()};
    auto manifest = parse_manifest(*bytes);
    const auto refuse = [&](const error& why) {
        return detail::open_failure{error(why).with_where(manifest_path)};
    };
    if (!manifest) return refuse(manifest.error());
    if (auto step = detail::step_of(detail::base_name(path)); step && *step != manifest->step)
        return refuse(
            error(errc::corrupt, fmt::format("the manifest is of step {}", manifest->step)));

    out.path_ = path;
    out.manifest_ = std::move(*manifest);
    const auto& shards = out.manifest_.shards;
    std::uint64_t first_chunk = 0;
    for (std::size_t i = 0; i < shards.size(); ++i) {
        const auto shard_path = join_path(path, shards[i].name);
        const detail::open_position at{i + 1, detail::open_position::header};
        detail::opened_shard shard;
        if (auto failed =
                detail::open_shard(where, shard_path, out.manifest_, i, share, first_chunk, shard))
            return failed;
        if (auto done = detail::locate(shard.head, i, out.manifest_, out.offsets_); !done)
            return detail::open_failure{error(done.error()).with_where(shard_path), at};
        out.shards_.push_back(std::move(shard.from));
        first_chunk += shards[i].crcs.size();
    }
    if (auto done = detail::all_located(out.manifest_, out.offsets_); !done)
        return detail::open_failure{error(done.error()).with_where(manifest_path),
                                    {shards.size() + 1, 0}};
    return std::nullopt;
}

SKEIN_INLINE result<loaded_checkpoint> checkpointer::open(disk& where, const std::string& path,
                                                          bool verify_bytes) {
    loaded_checkpoint out;
    const detail::verify_share share{.index = 0, .count = verify_bytes ? 1u : 0u};
    if (auto failed = open_share(where, path, share, out)) return failed->why;
    return out;
}

// ---- the newest one that is whole ---------------------------------------------------------------

/// Puts a broken checkpoint out of the way, for people to look at.
SKEIN_INLINE void checkpointer::set_aside(std::uint64_t step, const error& why,
                                          std::uint64_t next) const {
    const auto path = step_path(step);
    auto aside = path + ".broken";
    for (int k = 2; disk_.status(aside).has_value(); ++k)
        aside = fmt::format("{}.broken-{}", path, k);
    auto moved = disk_.rename(path, aside);
    if (moved) moved = disk_.sync_dir(dir_);
    warn(fmt::format("checkpoint of step {} refused: {}; {}, trying step {}", step, why.what(),
                     moved ? "renamed to " + detail::base_name(aside)
                           : fmt::format("not renamed: {}", moved.error().what()),
                     next));
}

/// Collective; rank 0 looks, and clears away what earlier saves left.
SKEIN_INLINE detail::checkpoint_listing checkpointer::list_for_all() const {
    json mine = {{"ok", true}, {"steps", json::array()}, {"any_aside", false}};
    if (world_.rank == 0) {
        const auto there = disk_.status(dir_);
        const auto entries =
            there ? disk_.list(dir_) : result<std::vector<dir_entry>>(there.error());
        if (entries) {
            clean_up();
            mine["steps"] = steps();
            mine["any_aside"] = std::ranges::any_of(*entries, [](const dir_entry& entry) {
                return entry.name.starts_with("step-") &&
                       entry.name.find(".broken") != entry.name.npos;
            });
        } else if (there || there.error().code() != errc::not_found) {
            mine = detail::outcome(entries.error());
        }
    }
    const auto all = detail::gather(world_, mine);
    detail::checkpoint_listing seen;
    seen.steps = json_uints(all[0], "steps").value();
    std::ranges::reverse(seen.steps);
    seen.any_aside = all[0].value("any_aside", false);
    return seen;
}

/// Collective: each rank opens the checkpoint and verifies its share. The error, if it is broken,
/// is the same on every rank.
SKEIN_INLINE std::optional<error> checkpointer::open_together(std::uint64_t step,
                                                              loaded_checkpoint& out) const {
    const detail::verify_share share{.index = static_cast<std::uint64_t>(world_.rank),
                                     .count = static_cast<std::uint64_t>(world_.size)};
    json mine = {{"ok", true}};
    if (const auto failed = open_share(disk_, step_path(step), share, out)) {
        mine = detail::outcome(failed->why);
        mine["at"] = {failed->at.shard, failed->at.stage};
    }
    return detail::verdict(detail::gather_all(world_, mine));
}

namespace detail {

/// A checkpoint that may be whole, but the disk does not give it: to pass it over would lose steps
/// without need, so a person decides, and is told how.
///   older  the step of the one before it, if there is one
[[nodiscard]] SKEIN_INLINE error unreadable(const error& why, const std::string& path,
                                            std::optional<std::uint64_t> older) {
    if (why.code() != errc::io && why.code() != errc::permission_denied) return why;
    auto hint = std::string("resume when it can be read again");
    if (older)
        hint +=
            fmt::format(", or go on from step {} instead: mv {} {}.unreadable", *older, path, path);
    return error(why).with_hint(why.hint().empty() ? hint : why.hint() + "; " + hint);
}

} // namespace detail

SKEIN_INLINE std::optional<loaded_checkpoint> checkpointer::load_latest() {
    const auto seen = list_for_all();
    std::vector<std::pair<std::uint64_t, error>> refused;
    for (std::size_t at = 0; at < seen.steps.size(); ++at) {
        const auto step = seen.steps[at];
        loaded_checkpoint found;
        std::optional<error> broken;
        try {
            broken = open_together(step, found);
        } catch (const error& why) {
            throw detail::unreadable(why, step_path(step),
                                     at + 1 < seen.steps.size() ? std::optional(seen.steps[at + 1])
                                                                : std::nullopt);
        }
        if (broken) {
            refused.emplace_back(step, *broken);
            continue;
        }
        for (std::size_t i = 0; i < refused.size() && world_.rank == 0; ++i)
            set_aside(refused[i].first, refused[i].second,
                      i + 1 < refused.size() ? refused[i + 1].first : step);
        if (!refused.empty()) detail::gather(world_, {{"ok", true}}); // the names are settled
        return found;
    }
    // Starting over would cost what the run has reached: a person decides.
    if (refused.empty() && !seen.any_aside) return std::nullopt;
    throw error(errc::not_found, fmt::format("no checkpoint in {} is whole", dir_))
        .with_cause(refused.empty() ? "the broken ones were renamed to .broken before"
                                    : std::string(refused.front().second.what()))
        .with_hint("put a good copy back, or start anew under another run name");
}

} // namespace skein::train
