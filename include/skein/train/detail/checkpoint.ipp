// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/train/checkpoint.hpp>.
//
// Names in the checkpoint folder, and what they mean after a crash:
//     step-N               whole: renamed here only after everything in it was synced
//     step-N.part-<id>     a save that did not finish: removed at the next save or load
//     step-N.replaced      the older step-N while a new one takes its place: put back if step-N is
//                          missing, removed otherwise
//     step-N.trash         retired, its removal did not finish: removed
//     step-N.broken[-k]    refused by a load; kept for people to look at

#include <skein/core/check.hpp>
#include <skein/core/clock.hpp>
#include <skein/core/log.hpp>
#include <skein/core/random.hpp>
#include <skein/train/detail/checkpoint_parts.ipp>

#include <algorithm>
#include <chrono>
#include <set>
#include <span>
#include <utility>

#include <fmt/core.h>

namespace skein::train {

// ---- loaded_checkpoint ---------------------------------------------------------------------------

SKEIN_INLINE const tensor_info& loaded_checkpoint::info(const std::string& name) const {
    auto it = tensors_.find(name);
    if (it == tensors_.end())
        throw error(errc::not_found, fmt::format("the checkpoint has no tensor '{}'", name))
            .with_where(path_)
            .with_hint("was it written by another model?");
    return it->second;
}

SKEIN_INLINE void loaded_checkpoint::read(const std::string& name, mut_byte_span into) const {
    const auto& t = info(name);
    if (t.bytes != into.size())
        throw error(errc::mismatch,
                    fmt::format("tensor '{}' was saved as {} {} ({} bytes), the model has "
                                "{} bytes",
                                name, t.dtype, detail::shape_text(t.shape), t.bytes, into.size()))
            .with_where(path_);
    const auto shard = shard_of_.at(name);
    const auto got = shards_[shard]->read_at(t.offset, into);
    if (!got) throw got.error();
    if (*got != into.size())
        throw error(errc::corrupt, fmt::format("tensor '{}' is cut off after {} of {} bytes", name,
                                               *got, into.size()))
            .with_where(join_path(path_, manifest_.shards[shard].name));
}

SKEIN_INLINE void loaded_checkpoint::read(const std::string& name, std::string_view dtype,
                                          std::span<const std::int64_t> shape,
                                          mut_byte_span into) const {
    const auto& t = info(name);
    if (t.dtype != dtype || !std::equal(t.shape.begin(), t.shape.end(), shape.begin(), shape.end()))
        throw error(errc::mismatch,
                    fmt::format("tensor '{}' was saved as {} {}, the model has {} {}", name,
                                t.dtype, detail::shape_text(t.shape), dtype,
                                detail::shape_text(shape)))
            .with_where(path_)
            .with_hint("start the run with the settings it was saved with");
    read(name, into);
}

SKEIN_INLINE byte_buffer loaded_checkpoint::read(const std::string& name) const {
    byte_buffer bytes(info(name).bytes);
    read(name, mut_byte_span(bytes));
    return bytes;
}

// ---- checkpointer --------------------------------------------------------------------------------

SKEIN_INLINE checkpointer::checkpointer(disk& where, std::string dir, checkpoint_options options,
                                        checkpoint_world world)
    : disk_(where), dir_(std::move(dir)), options_(std::move(options)), world_(std::move(world)) {
    SKEIN_CHECK(world_.size >= 1 && world_.rank >= 0 && world_.rank < world_.size,
                "rank {} of a world of {}", world_.rank, world_.size);
    SKEIN_CHECK(world_.size == 1 || world_.exchange,
                "a world of {} ranks needs an exchange function", world_.size);
    SKEIN_CHECK(options_.keep_last >= 1, "keep_last is 0: the newest checkpoint is always kept");
    SKEIN_CHECK(options_.chunk_bytes >= 1, "chunk_bytes is 0");
}

SKEIN_INLINE std::string checkpointer::step_path(std::uint64_t step) const {
    return join_path(dir_, detail::step_name(step));
}

SKEIN_INLINE void checkpointer::warn(const std::string& line) const {
    if (options_.warn) return options_.warn(line);
    logging::warn("checkpoint", line);
}

/// Agrees on what is saved and where (`part`, which rank 0 chooses), then every rank writes its share.
SKEIN_INLINE std::vector<shard_entry> checkpointer::write_all(const checkpoint_state& state,
                                                              std::string& part) {
    json mine = {{"ok", true}, {"plan", detail::plan_hash(state)}};
    if (world_.rank == 0) {
        auto begun = begin_part(state.step);
        if (begun)
            mine["part"] = part = *begun;
        else
            mine = detail::outcome(begun.error());
    }
    auto all = detail::gather(world_, mine);
    for (std::size_t r = 0; r < all.size(); ++r)
        if (all[r].value("plan", std::uint64_t{0}) != all[0].value("plan", std::uint64_t{0}))
            throw error(
                errc::mismatch,
                fmt::format("rank {} wants to save other tensors or another step than rank 0", r));
    part = all[0].value("part", std::string());

    // Each rank tells size and checksums of its share.
    auto shard = write_shard(state, part);
    mine = shard ? json{{"ok", true}, {"shard", detail::shard_json(*shard)}}
                 : detail::outcome(shard.error());
    std::vector<shard_entry> shards;
    for (auto& said : detail::gather(world_, mine))
        shards.push_back(
            detail::parse_shard_entry(said.value("shard", json()), options_.chunk_bytes).value());
    return shards;
}

SKEIN_INLINE saved_checkpoint checkpointer::save(const checkpoint_state& state) {
    const auto started = system_clock().now();
    const bool leader = world_.rank == 0;
    std::string part;
    bool committed = false;
    try {
        auto shards = write_all(state, part);
        std::uint64_t bytes = 0;
        for (auto& shard : shards) bytes += shard.bytes;

        // Rank 0 commits; everybody learns whether it worked.
        result<bool> durable = false;
        if (leader) durable = commit(state, part, std::move(shards));
        committed = leader && durable.has_value();
        const auto all = detail::gather(world_, durable ? json{{"ok", true}, {"durable", *durable}}
                                                        : detail::outcome(durable.error()));
        if (committed && *durable) retire();

        const std::chrono::duration<double> took = system_clock().now() - started;
        return {state.step, step_path(state.step), bytes, took.count(),
                all[0].value("durable", true)};
    } catch (const error& failed) {
        if (committed) throw; // it is on disk; a rank was lost while it was told so
        if (leader && !part.empty())
            if (auto gone = disk_.remove_tree(part); !gone)
                warn(fmt::format("unfinished checkpoint not removed: {}", gone.error().what()));
        const auto kept = leader ? steps() : std::vector<std::uint64_t>();
        auto told = detail::with_context(
            fmt::format("checkpoint of step {} not written", state.step), failed);
        if (!kept.empty()) {
            auto hint = fmt::format("the checkpoint of step {} is kept", kept.back());
            told.with_hint(failed.hint().empty() ? hint : failed.hint() + "; " + hint);
        }
        throw told;
    }
}

SKEIN_INLINE result<std::string> checkpointer::begin_part(std::uint64_t step) const {
    if (steps().empty()) {
        if (auto made = disk_.make_dirs(dir_); !made) return made.error();
        // The first save, or the first after one that failed here: the folders above may be new too, and
        // each name must be durable.
        for (auto above = parent_path(dir_);; above = parent_path(above)) {
            const auto synced = disk_.sync_dir(above);
            if (!synced && synced.error().code() != errc::permission_denied) return synced.error();
            if (above == "." || above == "/") break;
        }
    }
    clean_up();
    const auto part = fmt::format("{}.part-{:016x}", step_path(step), system_random().next());
    if (auto made = disk_.make_dirs(part); !made) return made.error();
    return part;
}

SKEIN_INLINE result<shard_entry> checkpointer::write_shard(const checkpoint_state& state,
                                                           const std::string& folder) const {
    const auto owner = detail::deal_tensors(state.tensors, world_.size);
    std::vector<tensor_view> mine;
    for (std::size_t i = 0; i < owner.size(); ++i)
        if (owner[i] == world_.rank) mine.push_back(state.tensors[i]);
    // A name that repeats would otherwise be seen only when both copies meet in one shard.
    std::set<std::string_view> names;
    for (auto& t : state.tensors)
        if (!names.insert(t.name).second)
            return error(errc::invalid_argument,
                         fmt::format("two tensors are called '{}'", t.name));
    const auto plan =
        plan_safetensors(mine, {{"format", "pt"}, {"writer", "skein " SKEIN_VERSION_STRING}});
    if (!plan) return plan.error();

    shard_entry shard;
    shard.name = fmt::format("shard-{}-of-{}.safetensors", world_.rank, world_.size);
    const auto path = join_path(folder, shard.name);
    auto opened = disk_.open(path, open_mode::create_new);
    if (!opened && opened.error().code() == errc::not_found && world_.rank != 0)
        return error(opened.error())
            .with_hint(
                "every rank must see the run folder: put it on a file system all hosts share");
    if (!opened) return opened.error();
    detail::shard_writer out(**opened, options_.chunk_bytes);
    if (auto done = write_safetensors(*plan, out); !done) return done.error();
    if (auto done = out.flush(); !done) return done.error();
    if (auto done = (*opened)->sync(); !done) return done.error();
    if (auto done = (*opened)->close(); !done) return done.error();
    shard.bytes = out.sums().bytes();
    shard.crcs = out.sums().finish();
    return shard;
}

SKEIN_INLINE result<bool> checkpointer::commit(const checkpoint_state& state,
                                               const std::string& part,
                                               std::vector<shard_entry> shards) const {
    for (auto& shard : shards) {
        const auto seen = disk_.status(join_path(part, shard.name));
        if (!seen || seen->bytes != shard.bytes)
            return error(errc::not_found,
                         fmt::format("{} was written by its rank but rank 0 cannot see "
                                     "it",
                                     join_path(part, shard.name)))
                .with_hint("put the run folder on a file system all hosts share");
    }
    checkpoint_manifest manifest;
    manifest.step = state.step;
    manifest.world_size = world_.size;
    manifest.chunk_bytes = options_.chunk_bytes;
    manifest.shards = std::move(shards);
    manifest.metrics = state.metrics;
    manifest.extra = state.extra;
    manifest.config_hash = state.config_hash;
    manifest.wall_time = std::chrono::duration<double>(system_clock().wall()).count();
    const auto text = dump_manifest(manifest);
    if (auto done = disk_.write_whole(join_path(part, detail::manifest_name),
                                      as_bytes(std::string_view(text)));
        !done)
        return done.error();
    if (auto done = disk_.sync_dir(part); !done) return done.error();
    return put_in_place(state.step, part);
}

SKEIN_INLINE result<bool> checkpointer::put_in_place(std::uint64_t step,
                                                     const std::string& part) const {
    const auto final = step_path(step), aside = final + ".replaced";
    const bool replaces = disk_.status(final).has_value();
    if (replaces) {
        if (auto done = disk_.remove_tree(aside); !done) return done.error();
        if (auto done = disk_.rename(final, aside); !done) return done.error();
    }
    if (auto done = disk_.rename(part, final); !done) {
        if (replaces) (void)disk_.rename(aside, final);
        return done.error();
    }
    if (auto done = disk_.sync_dir(dir_); !done) {
        warn(
            fmt::format("checkpoint of step {} is written and whole, but {} could not be synced: a "
                        "power failure may bring back the state before it: {}",
                        step, dir_, done.error().what()));
        return false; // what it replaces or outdates stays, too
    }
    if (replaces)
        if (auto done = disk_.remove_tree(aside); !done)
            warn(fmt::format("the replaced checkpoint was not removed: {}", done.error().what()));
    return true;
}

SKEIN_INLINE void checkpointer::clean_up() const {
    const auto entries = disk_.list(dir_);
    if (!entries) return;
    std::set<std::string> names;
    for (auto& entry : *entries) names.insert(entry.name);
    auto must = [&](const result<void>& done) {
        if (!done) warn(fmt::format("cleaning {}: {}", dir_, done.error().what()));
    };
    for (auto& name : names) {
        const auto path = join_path(dir_, name);
        if (auto step = detail::step_of(name, ".replaced");
            step && !names.contains(detail::step_name(*step)))
            must(disk_.rename(path, step_path(*step)));
        else if (step || detail::step_of(name, ".trash") ||
                 (name.starts_with("step-") && name.find(".part-") != std::string::npos))
            must(disk_.remove_tree(path));
    }
}

SKEIN_INLINE std::vector<std::uint64_t> checkpointer::steps() const {
    std::vector<std::uint64_t> out;
    const auto entries = disk_.list(dir_);
    if (!entries) return out;
    for (auto& entry : *entries)
        if (auto step = detail::step_of(entry.name); step && entry.is_directory)
            out.push_back(*step);
    std::sort(out.begin(), out.end());
    return out;
}

SKEIN_INLINE void checkpointer::retire() const {
    const auto all = steps();
    std::set<std::uint64_t> keep;
    for (std::size_t i = 0; i < std::min(options_.keep_last, all.size()); ++i)
        keep.insert(all[all.size() - 1 - i]);
    if (options_.keep_best > 0) {
        std::vector<std::pair<double, std::uint64_t>> ranked; // best first; of equals the newer
        for (auto step : all) {
            const auto bytes = disk_.read_whole(join_path(step_path(step), detail::manifest_name),
                                                detail::max_manifest_bytes);
            const auto manifest =
                bytes ? parse_manifest(*bytes) : result<checkpoint_manifest>(bytes.error());
            if (!manifest) continue;
            if (auto it = manifest->metrics.find(options_.metric); it != manifest->metrics.end())
                ranked.emplace_back(options_.lower_is_better ? it->second : -it->second,
                                    UINT64_MAX - step);
        }
        std::sort(ranked.begin(), ranked.end());
        for (std::size_t i = 0; i < std::min(options_.keep_best, ranked.size()); ++i)
            keep.insert(UINT64_MAX - ranked[i].second);
    }
    for (auto step : all) {
        if (keep.contains(step)) continue;
        // Renamed first: a crash while the files go must not leave half a checkpoint under its name.
        const auto trash = step_path(step) + ".trash";
        result<void> done = disk_.rename(step_path(step), trash);
        if (done) done = disk_.sync_dir(dir_);
        if (done) done = disk_.remove_tree(trash);
        if (!done)
            warn(fmt::format("old checkpoint of step {} not removed: {}", step,
                             done.error().what()));
    }
}

SKEIN_INLINE result<loaded_checkpoint> checkpointer::open(disk& where, const std::string& path,
                                                          bool verify_bytes) {
    const auto manifest_path = join_path(path, detail::manifest_name);
    const auto bytes = where.read_whole(manifest_path, detail::max_manifest_bytes);
    if (!bytes) return bytes.error();
    auto manifest = parse_manifest(*bytes);
    if (!manifest) return error(manifest.error()).with_where(manifest_path);
    if (auto step = detail::step_of(detail::base_name(path)); step && *step != manifest->step)
        return error(errc::corrupt, fmt::format("the manifest is of step {}", manifest->step))
            .with_where(manifest_path);

    loaded_checkpoint out;
    out.path_ = path;
    out.manifest_ = std::move(*manifest);
    for (std::size_t i = 0; i < out.manifest_.shards.size(); ++i) {
        const auto& shard = out.manifest_.shards[i];
        const auto shard_path = join_path(path, shard.name);
        auto refuse = [&](const error& why) { return error(why).with_where(shard_path); };
        auto opened = where.open(shard_path, open_mode::read);
        if (!opened) return opened.error();
        const auto size = (*opened)->size();
        if (!size) return size.error();
        if (*size != shard.bytes)
            return refuse(
                error(errc::corrupt,
                      fmt::format("{} bytes, the manifest says {} ({})", *size, shard.bytes,
                                  *size < shard.bytes ? "truncated" : "too long")));
        if (verify_bytes)
            if (auto done = detail::verify_shard(**opened, shard, out.manifest_.chunk_bytes); !done)
                return refuse(done.error());
        auto head = detail::read_shard_head(**opened, shard.bytes);
        if (!head) return refuse(head.error());
        for (auto& t : head->tensors) {
            if (!out.shard_of_.emplace(t.name, i).second)
                return refuse(
                    error(errc::malformed, fmt::format("tensor '{}' is in two shards", t.name)));
            auto name = t.name;
            out.tensors_.emplace(std::move(name), std::move(t));
        }
        out.shards_.push_back(std::move(*opened));
    }
    return out;
}

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

SKEIN_INLINE std::optional<loaded_checkpoint> checkpointer::find_latest() const {
    if (auto there = disk_.status(dir_); !there) {
        if (there.error().code() == errc::not_found) return std::nullopt;
        throw there.error();
    }
    const auto entries = disk_.list(dir_);
    if (!entries) throw entries.error();
    clean_up();
    const auto all = steps();
    std::vector<std::pair<std::uint64_t, error>> refused;
    for (auto step = all.rbegin(); step != all.rend(); ++step) {
        auto opened = open(disk_, step_path(*step));
        if (!opened) {
            const auto& why = opened.error();
            const bool broken = why.code() == errc::corrupt || why.code() == errc::malformed ||
                                why.code() == errc::not_found || why.code() == errc::too_large;
            // A newer format, a missing permission, a disk that fails to answer: not broken.
            if (!broken) throw why;
            refused.emplace_back(*step, why);
            continue;
        }
        for (std::size_t i = 0; i < refused.size(); ++i)
            set_aside(refused[i].first, refused[i].second,
                      i + 1 < refused.size() ? refused[i + 1].first : *step);
        return std::move(*opened);
    }
    // Starting over would cost what the run has reached: a person decides.
    const bool any_aside = std::ranges::any_of(*entries, [](const dir_entry& entry) {
        return entry.name.starts_with("step-") && entry.name.find(".broken") != entry.name.npos;
    });
    if (refused.empty() && !any_aside) return std::nullopt;
    throw error(errc::corrupt, fmt::format("no checkpoint in {} is whole", dir_))
        .with_cause(refused.empty() ? "the broken ones were renamed to .broken before"
                                    : std::string(refused.front().second.what()))
        .with_hint("put a good copy back, or start anew under another run name");
}

SKEIN_INLINE std::optional<loaded_checkpoint> checkpointer::load_latest() {
    if (world_.size == 1) return find_latest();

    // Rank 0 verifies and chooses, the others open the same one.
    std::optional<loaded_checkpoint> found;
    json mine = {{"ok", true}};
    if (world_.rank == 0) {
        try {
            found = find_latest();
            mine["found"] = found ? found->path() : std::string();
        } catch (const error& failed) {
            mine = detail::outcome(failed);
        }
    }
    const auto all = detail::gather(world_, mine);
    const auto path = all[0].value("found", std::string());
    if (path.empty()) return std::nullopt;
    result<void> done;
    if (world_.rank != 0) {
        auto opened = open(disk_, path, false);
        if (opened)
            found = std::move(*opened);
        else
            done = error(opened.error())
                       .with_hint("every rank must see the run folder: put it on a file system all "
                                  "hosts share");
    }
    detail::gather(world_, detail::outcome(done));
    return found;
}

} // namespace skein::train
