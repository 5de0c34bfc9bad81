// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/train/checkpoint.hpp>: saving. Loading is in checkpoint_load.ipp.
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
#include <skein/train/detail/checkpoint_load.ipp>

#include <algorithm>
#include <chrono>
#include <set>
#include <span>
#include <utility>

#include <fmt/core.h>

namespace skein::train {

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

/// Agrees on what is saved and where (`part`, which rank 0 chooses), then every rank writes its
/// share.
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
        // The first save, or the first after one that failed here: the folders above may be new
        // too, and each name must be durable.
        for (auto above = parent_path(dir_);; above = parent_path(above)) {
            const auto synced = disk_.sync_dir(above);
            if (!synced && synced.error().code() != errc::permission_denied) return synced.error();
            if (above == "." || above == "/") break;
        }
    }
    clean_up();
    auto part =
        fmt::format("{}{}{:016x}", step_path(step), detail::part_mark, system_random().next());
    if (auto made = disk_.make_dirs(part); !made) return made.error();
    return part;
}

SKEIN_INLINE result<shard_entry> checkpointer::write_shard(const checkpoint_state& state,
                                                           const std::string& folder) const {
    const auto mine = detail::own_part(state.tensors, world_);
    if (!mine) return mine.error();
    const auto plan = plan_safetensors(mine->views, {{"format", "pt"},
                                                     {"writer", "skein " SKEIN_VERSION_STRING},
                                                     {detail::sharding_key, mine->sharding}});
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
    detail::shard_writer out(**opened, options_.chunk_bytes, options_.is_given_up);
    if (auto done = write_safetensors(*plan, out); !done) return done.error();
    if (auto done = out.flush(); !done) return done.error();
    if (auto done = (*opened)->sync(); !done) return done.error();
    if (auto done = (*opened)->close(); !done) return done.error();
    shard.bytes = out.sums().bytes();
    shard.crcs = out.sums().finish();
    return shard;
}

/// What is where, from the headers of the shards as they are on disk.
SKEIN_INLINE result<tensor_table> checkpointer::tabulate(
    const checkpoint_state& state, const std::string& part,
    const std::vector<shard_entry>& shards) const {
    tensor_table table;
    for (auto& t : state.tensors) table.emplace(t.name, tensor_entry{t.dtype, t.shape, {}});
    for (std::size_t i = 0; i < shards.size(); ++i) {
        const auto path = join_path(part, shards[i].name);
        const auto seen = disk_.status(path);
        if (!seen || seen->bytes != shards[i].bytes)
            return error(errc::not_found,
                         fmt::format("{} was written by its rank but rank 0 cannot see it", path))
                .with_hint("put the run folder on a file system all hosts share");
        auto opened = disk_.open(path, open_mode::read);
        if (!opened) return opened.error();
        const auto head = detail::read_shard_head(**opened, shards[i].bytes);
        if (!head) return error(head.error()).with_where(path);
        const auto rows = detail::first_rows(*head);
        if (!rows) return error(rows.error()).with_where(path);
        for (auto& t : head->tensors) {
            const auto found = table.find(t.name);
            if (found == table.end())
                return error(errc::mismatch,
                             fmt::format("tensor '{}' is in a shard, but not saved", t.name))
                    .with_where(path);
            found->second.parts.push_back({i, rows->at(t.name), detail::rows_of(t.shape)});
        }
    }
    for (auto& [name, tensor] : table)
        if (auto done = detail::check_parts(name, tensor, shards.size()); !done)
            return error(errc::invalid_argument, done.error().text())
                .with_hint("the rows of all ranks together must be the tensor, each row once");
    return table;
}

SKEIN_INLINE result<bool> checkpointer::commit(const checkpoint_state& state,
                                               const std::string& part,
                                               std::vector<shard_entry> shards) const {
    auto tensors = tabulate(state, part, shards);
    if (!tensors) return tensors.error();
    checkpoint_manifest manifest;
    manifest.step = state.step;
    manifest.world_size = world_.size;
    manifest.chunk_bytes = options_.chunk_bytes;
    manifest.shards = std::move(shards);
    manifest.tensors = std::move(*tensors);
    manifest.metrics = state.metrics;
    manifest.extra = state.extra;
    manifest.config_hash = state.config_hash;
    manifest.wall_time = std::chrono::duration<double>(system_clock().wall()).count();
    const auto text = dump_manifest(manifest);
    if (text.size() > detail::max_manifest_bytes)
        return error(errc::too_large, fmt::format("a manifest of {} bytes is longer than {}",
                                                  text.size(), detail::max_manifest_bytes))
            .with_hint("raise chunk_bytes");
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
        else if (step || detail::step_of(name, ".trash") || detail::is_part(name))
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

/// Best first; of equals the newer.
SKEIN_INLINE std::vector<std::uint64_t> checkpointer::best_of(
    const std::vector<std::uint64_t>& all) const {
    std::vector<std::pair<double, std::uint64_t>> ranked;
    for (auto step : all) {
        if (options_.keep_best == 0) break;
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
    ranked.resize(std::min(options_.keep_best, ranked.size()));
    std::vector<std::uint64_t> best;
    for (const auto& [value, step] : ranked) best.push_back(UINT64_MAX - step);
    return best;
}

/// Of its files as they are on disk.
SKEIN_INLINE std::uint64_t checkpointer::bytes_of(std::uint64_t step) const {
    std::uint64_t bytes = 0;
    const auto files = disk_.list(step_path(step));
    if (!files)
        warn(fmt::format("how large the checkpoint of step {} is is not known: {}", step,
                         files.error().what()));
    else
        for (const auto& each : *files) bytes += each.bytes;
    return bytes;
}

/// Those to be kept, the dearest first.
///   all  oldest first
SKEIN_INLINE std::vector<std::uint64_t> checkpointer::wanted(
    const std::vector<std::uint64_t>& all) const {
    std::vector<std::uint64_t> keep;
    const auto add = [&](std::uint64_t step) {
        if (std::find(keep.begin(), keep.end(), step) == keep.end()) keep.push_back(step);
    };
    if (!all.empty()) add(all.back());
    for (const auto step : best_of(all)) add(step);
    for (std::size_t i = 0; i < std::min(options_.keep_last, all.size()); ++i)
        add(all[all.size() - 1 - i]);
    for (std::size_t i = all.size(); i-- > 0;)
        if (options_.keep_every > 0 && all[i] % options_.keep_every == 0) add(all[i]);
    if (options_.keep_bytes == 0) return keep;
    std::uint64_t sum = 0;
    std::size_t fit = 0;
    for (; fit < keep.size(); ++fit) {
        sum += bytes_of(keep[fit]);
        if (sum > options_.keep_bytes && fit > 0) break;
    }
    keep.resize(fit);
    return keep;
}

SKEIN_INLINE void checkpointer::retire() const {
    const auto all = steps();
    const auto keep = wanted(all);
    for (auto step : all) {
        if (std::find(keep.begin(), keep.end(), step) != keep.end()) continue;
        // Renamed first: a crash while the files go must not leave half a checkpoint under its
        // name.
        const auto trash = step_path(step) + ".trash";
        result<void> done = disk_.rename(step_path(step), trash);
        if (done) done = disk_.sync_dir(dir_);
        if (done) done = disk_.remove_tree(trash);
        if (!done)
            warn(fmt::format("old checkpoint of step {} not removed: {}", step,
                             done.error().what()));
    }
}

} // namespace skein::train
