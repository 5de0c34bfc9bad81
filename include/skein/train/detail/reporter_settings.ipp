// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/train/reporter.hpp>: what a run's config.json says and said before, and where its
// files are.

#include <skein/core/disk.hpp>
#include <skein/core/error.hpp>
#include <skein/core/mounted_folder.hpp>
#include <skein/core/this_process.hpp>
#include <skein/report/run_dir.hpp>
#include <skein/report/settings.hpp>
#include <skein/train/collective.hpp>
#include <skein/train/context.hpp>
#include <skein/train/run_config.hpp>
#include <skein/wire/json.hpp>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

#include <fmt/core.h>

namespace skein::train {

namespace detail {

/// The settings of a run as JSON, for config.json and for people.
SKEIN_INLINE json config_json(const run_config& c) {
    const auto& saves = c.checkpoint;
    const bool lowest = saves.keep_best.order == metric_order::lowest;
    const auto seconds = [](duration d) { return std::chrono::duration<double>(d).count(); };
    return json{
        {"name", c.name},
        {"max_steps", c.max_steps},
        {"epochs", c.epochs},
        {"last_batch", c.last == last_batch::drop      ? "drop"
                       : c.last == last_batch::shorten ? "shorten"
                                                       : "carry"},
        {"global_batch", c.global_batch},
        {"accumulation", c.accumulation},
        {"seed", c.seed},
        {"clip", c.clip},
        {"clip_value", c.clip_value},
        {"precision", c.precision},
        {"eval_every", c.eval_every},
        {"eval_samples", c.eval_samples},
        {"eval_batch", c.eval_batch},
        {"scaling",
         {{"workers", c.scaling.workers.is_fixed() ? json(c.scaling.workers.most)
                                                   : json(to_string(c.scaling.workers))},
          {"threads", std::max(c.scaling.threads, 1)},
          {"gpus", c.scaling.gpus},
          {"logical_shards", c.scaling.logical_shards}}},
        {"checkpoint",
         {{"enabled", saves.enabled},
          {"every", saves.every},
          {"keep_last", std::max(saves.keep_last, 1)},
          {"keep_best",
           {{"k", std::max(saves.keep_best.k, 0)},
            {"metric", saves.keep_best.metric},
            {"order", lowest ? "lowest" : "highest"},
            {"value", saves.keep_best.value == best_value::newest ? "newest" : "evaluated"}}},
          {"on_stop", saves.on_stop}}},
        {"failure",
         {{"max_failures", c.failure.max_failures},
          {"backoff_s", seconds(c.failure.backoff)},
          {"collective_timeout_s", seconds(c.failure.collective_timeout)},
          {"silence_s", seconds(c.failure.silence)},
          {"stop_grace_s", seconds(c.failure.stop_grace)}}},
        {"tokens_per_sample", c.tokens_per_sample}};
}

/// The same place whatever folder the program goes to; see path_for_people() for the way back. Of
/// another host's as that calls it.
[[nodiscard]] SKEIN_INLINE std::string whole_path(const std::string& path) {
    std::error_code failed;
    const auto whole = std::filesystem::absolute(path, failed);
    return path.empty() || failed ? path
                                  : mounted_folder::name_of(whole.lexically_normal().string());
}

/// Rank 0's on its host; elsewhere the same by the configuration, below the folder that this rank is
/// in now. Collective.
[[nodiscard]] SKEIN_INLINE std::string path_of_run(const context& ctx, const run_config& config,
                                                   const std::string& name) {
    const auto typed = from_first(ctx, config.runs_dir);
    const auto place = from_first(ctx, ctx.host() + "\n" + whole_path(config.runs_dir));
    const auto end = place.find('\n');
    const bool is_here = place.substr(0, end) == ctx.host();
    return join_path(is_here ? place.substr(end + 1) : whole_path(typed), name);
}

/// A path as a person writes it where the program was started: relative below that folder, unless
/// the program has left it or was given an absolute one.
[[nodiscard]] SKEIN_INLINE std::string path_for_people(const run_config& config,
                                                       const std::string& path) {
    if (path.empty() || config.runs_dir.starts_with('/')) return path;
    if (has_left_start_folder()) return whole_path(path);
    if (!path.starts_with('/')) return path;
    std::error_code failed;
    const auto here = std::filesystem::current_path(failed);
    const auto relative = std::filesystem::path(path).lexically_relative(here).string();
    return failed || relative.empty() || relative.starts_with("..") ? path : relative;
}
/// The same for every path of the run in a text.
[[nodiscard]] SKEIN_INLINE std::string text_for_people(const run_config& config, std::string text) {
    const auto whole = whole_path(config.runs_dir);
    const auto shown = path_for_people(config, whole);
    if (shown == whole || whole.empty()) return text;
    for (auto at = text.find(whole + "/"); at != std::string::npos;
         at = text.find(whole + "/", at + shown.size()))
        text.replace(at, whole.size(), shown);
    return text;
}

/// config.json as it is; nothing when it cannot be read.
[[nodiscard]] SKEIN_INLINE json config_before(const report::run_dir& dir) {
    try {
        if (const auto text = dir.read_config())
            if (auto all = parse_json(std::string_view(*text)).value(); all.is_object()) return all;
    } catch (const error&) { // a damaged one is written anew
    }
    return json::object();
}

/// "heads: 2 -> 4" for each name that both have with different values.
SKEIN_INLINE void add_changes(std::string& to, const json& before, const json& now,
                              const std::string& prefix = {}) {
    if (!before.is_object()) return;
    for (const auto& [key, value] : now.items()) {
        const auto old = before.find(key);
        if (old == before.end() || *old == value) continue;
        if (value.is_object())
            add_changes(to, *old, value, prefix + key + ".");
        else
            to += fmt::format("{}{}{}: {} -> {}", to.empty() ? "" : ", ", prefix, key,
                              dump_json(*old), dump_json(value));
    }
}
} // namespace detail

SKEIN_INLINE std::string changed_settings(const report::run_dir& dir,
                                          const report::settings& settings) {
    std::string out;
    detail::add_changes(out, detail::config_before(dir).value("settings", json::object()),
                        parse_json(settings.text()).value());
    return out;
}

SKEIN_INLINE std::string changed_config(const report::run_dir& dir, const run_config& config) {
    auto now = detail::config_json(config);
    for (const char* const free : {"name", "max_steps", "epochs", "failure", "tokens_per_sample"})
        now.erase(free);
    now["scaling"].erase("workers");
    for (const char* const free : {"enabled", "every", "keep_last", "on_stop"})
        now["checkpoint"].erase(free);
    now["checkpoint"]["keep_best"].erase("k");
    std::string out;
    detail::add_changes(out, detail::config_before(dir), now);
    return out;
}

} // namespace skein::train
