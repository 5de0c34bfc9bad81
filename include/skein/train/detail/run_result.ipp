// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/train/run_result.hpp>: what a folder tells, and result.json.

#include <skein/core/log.hpp>
#include <skein/core/posix_disk.hpp>
#include <skein/train/checkpoint.hpp>
#include <skein/train/context.hpp>
#include <skein/train/elastic_place.hpp>
#include <skein/wire/json.hpp>

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

namespace skein::train {

SKEIN_INLINE std::optional<double> finished_run::metric(std::string_view called) const {
    for (const auto& m : metrics)
        if (m.name == called) return m.value;
    return std::nullopt;
}

SKEIN_INLINE std::map<std::string, std::vector<report::curve_point>> finished_run::history() const {
    if (path.empty())
        throw skein::error(errc::not_found, "this run has no history: it wrote no folder")
            .with_hint("let it train with a Trainer and config.write_files");
    std::map<std::string, std::vector<report::curve_point>> out;
    for (auto& column : report::read_metrics(path))
        out.emplace(std::move(column.name), std::move(column.points));
    if (out.empty())
        throw skein::error(errc::not_found, fmt::format("no metrics.csv with rows in {}", path))
            .with_hint("did the run write files, and does this host see its folder?");
    return out;
}

namespace detail {

inline constexpr std::string_view result_format = "skein-result-1";
inline constexpr std::string_view result_file = "result.json";

/// The best point of a column; nothing without a number in it.
[[nodiscard]] SKEIN_INLINE std::optional<measured> best_of(const report::metrics_column& column,
                                                           bool lowest) {
    std::optional<measured> best;
    for (const auto& point : column.points) {
        if (!std::isfinite(point.y)) continue;
        if (best && (lowest ? point.y >= best->value : point.y <= best->value)) continue;
        best = measured{column.name, point.y, static_cast<std::uint64_t>(point.x)};
    }
    return best;
}

/// The newest checkpoint there is, and the one of the best metric.
SKEIN_INLINE void find_checkpoints(const run_note& run, finished_run& out) {
    posix_disk disk;
    const checkpointer saved(disk, run.path + "/checkpoints");
    const auto steps = saved.steps();
    if (steps.empty()) return;
    out.newest_checkpoint = saved.step_path(steps.back());
    std::optional<double> best;
    for (const auto step : steps) {
        const auto opened = checkpointer::open(disk, saved.step_path(step), false);
        if (!opened) continue; // removed meanwhile, or damaged
        const auto& metrics = opened->manifest().metrics;
        const auto at = metrics.find(run.best_metric);
        if (at == metrics.end() || !std::isfinite(at->second)) continue;
        if (best && (run.best_is_lowest ? at->second >= *best : at->second <= *best)) continue;
        best = at->second;
        out.best_checkpoint = saved.step_path(step);
    }
}

SKEIN_INLINE std::string best_checkpoint_of(const run_note& run) {
    finished_run out;
    if (!run.path.empty()) find_checkpoints(run, out);
    return out.best_checkpoint;
}

SKEIN_INLINE void note_worlds(const context& ctx, finished_run& out) {
    if (auto* const place = ctx.elastic()) {
        const auto change = place->job().change();
        out.worlds = std::max<std::uint64_t>(change.generation, 1);
        if (out.worlds > 1) out.last_change = change.why;
        return;
    }
    out.restarts = ctx.attempt();
    out.worlds = static_cast<std::uint64_t>(std::max(ctx.attempt(), 0)) + 1;
    out.last_change = ctx.last_failure();
}

SKEIN_INLINE finished_run finished_of(const run_note& run) {
    finished_run out;
    out.name = run.name;
    out.path = run.path;
    out.steps = run.steps;
    out.seconds = run.seconds;
    out.stopped_by = run.stopped_by;
    if (!run.path.empty()) {
        for (const auto& column : report::read_metrics(run.path)) {
            if (column.points.empty()) continue;
            const auto& last = column.points.back();
            out.metrics.push_back({column.name, last.y, static_cast<std::uint64_t>(last.x)});
            if (!run.has_ended) out.steps = std::max(out.steps, static_cast<std::uint64_t>(last.x));
            if (column.name == run.best_metric) out.best = best_of(column, run.best_is_lowest);
        }
        find_checkpoints(run, out);
    }
    if (out.metrics.empty() && run.has_ended) {
        out.metrics.push_back({"loss", run.loss, run.steps});
        if (!std::isnan(run.val_loss))
            out.metrics.push_back({"val_loss", run.val_loss, run.val_step});
        for (const auto& [called, value] : run.metrics)
            out.metrics.push_back({called, value, run.steps});
    }
    return out;
}

// ---- the file ----------------------------------------------------------------------------------

/// JSON has no word for what is not finite: null is NaN, and infinities are texts.
[[nodiscard]] SKEIN_INLINE json json_of(const measured& m) {
    json value = m.value;
    if (std::isinf(m.value)) value = m.value < 0 ? "-inf" : "inf";
    return {{"name", m.name}, {"value", std::move(value)}, {"step", m.step}};
}

[[nodiscard]] SKEIN_INLINE std::string within(const std::string& path, const std::string& folder) {
    return path.starts_with(folder + "/") ? path.substr(folder.size() + 1) : path;
}

SKEIN_INLINE std::string result_text(const finished_run& run) {
    json metrics = json::array();
    for (const auto& m : run.metrics) metrics.push_back(json_of(m));
    json all{{"format", result_format},
             {"name", run.name},
             {"steps", run.steps},
             {"seconds", run.seconds},
             {"world_size", run.world_size},
             {"restarts", run.restarts},
             {"worlds", run.worlds},
             {"last_change", run.last_change},
             {"stopped_by", run.stopped_by},
             {"metrics", std::move(metrics)},
             {"best", run.best ? json_of(*run.best) : json()},
             {"newest_checkpoint", within(run.newest_checkpoint, run.path)},
             {"best_checkpoint", within(run.best_checkpoint, run.path)},
             {"value", json()},
             {"error", json()}};
    if (!run.value_json.empty()) all["value"] = parse_json(run.value_json).value();
    if (run.failure)
        all["error"] = {{"code", to_string(run.failure->code())},
                        {"text", run.failure->text()},
                        {"where", run.failure->where()},
                        {"cause", run.failure->cause()},
                        {"hint", run.failure->hint()},
                        {"rank", run.failed_rank}};
    return dump_json(all, 2) + "\n";
}

[[nodiscard]] SKEIN_INLINE measured measured_of(const json& from) {
    measured out;
    out.name = json_string(from, "name").value();
    out.step = json_uint(from, "step").value();
    const auto value = from.contains("value") ? from.at("value") : json(0);
    if (value.is_null())
        out.value = std::numeric_limits<double>::quiet_NaN();
    else if (value == "inf" || value == "-inf")
        out.value = (value == "inf" ? 1 : -1) * std::numeric_limits<double>::infinity();
    else
        out.value = json_double(from, "value").value();
    return out;
}

[[nodiscard]] SKEIN_INLINE skein::error failure_of(const json& from) {
    const auto code = json_string(from, "code").value();
    auto known = errc::unknown;
    for (std::uint16_t number = 1; number <= static_cast<std::uint16_t>(errc::object_lost);
         ++number)
        if (to_string(static_cast<errc>(number)) == code) known = static_cast<errc>(number);
    return skein::error(known, json_string(from, "text").value())
        .with_where(json_string(from, "where").value())
        .with_cause(json_string(from, "cause").value())
        .with_hint(json_string(from, "hint").value());
}

[[nodiscard]] SKEIN_INLINE skein::error missing_member(const std::string& key,
                                                       std::string_view wanted) {
    return skein::error(errc::malformed, fmt::format("'{}' is missing or is not {}", key, wanted));
}

[[nodiscard]] SKEIN_INLINE int small_number(const json& from, const std::string& key, int least) {
    const auto number = json_double(from, key).value();
    if (!(number >= least) || number > 1e9) throw missing_member(key, "a whole number");
    return static_cast<int>(number);
}

SKEIN_INLINE finished_run read_result(const json& all, const std::string& folder) {
    finished_run out;
    out.path = folder;
    out.name = json_string(all, "name").value();
    out.steps = json_uint(all, "steps").value();
    out.seconds = json_double(all, "seconds").value();
    out.world_size = small_number(all, "world_size", 1);
    out.restarts = small_number(all, "restarts", 0);
    // Results of before have neither.
    if (all.contains("worlds")) out.worlds = json_uint(all, "worlds").value();
    if (all.contains("last_change")) out.last_change = json_string(all, "last_change").value();
    out.stopped_by = json_string(all, "stopped_by").value();
    if (!all.contains("metrics") || !all.at("metrics").is_array())
        throw missing_member("metrics", "an array");
    for (const auto& m : all.at("metrics")) out.metrics.push_back(measured_of(m));
    for (const auto* key : {"best", "value", "error"})
        if (!all.contains(key)) throw missing_member(key, "a value or null");
    if (!all.at("best").is_null()) out.best = measured_of(all.at("best"));
    if (!all.at("value").is_null()) out.value_json = dump_json(all.at("value"));
    if (const auto& failed = all.at("error"); !failed.is_null()) {
        out.failure = failure_of(failed);
        out.failed_rank = small_number(failed, "rank", -1);
    }
    const auto whole = [&](const std::string& path) {
        return path.empty() || path.starts_with('/') ? path : folder + "/" + path;
    };
    out.newest_checkpoint = whole(json_string(all, "newest_checkpoint").value());
    out.best_checkpoint = whole(json_string(all, "best_checkpoint").value());
    return out;
}

SKEIN_INLINE finished_run result_of(std::string_view text, const std::string& folder) {
    const auto again = "it is written whole when training ends: copy it again, or train again";
    if (!text.ends_with("}\n"))
        throw skein::error(errc::malformed,
                           fmt::format("it is cut short after {} bytes", text.size()))
            .with_hint(again);
    const auto all = parse_json(text);
    if (!all) throw skein::error(all.error()).with_hint(again);
    const auto format = json_string(*all, "format");
    if (!format || !format->starts_with("skein-result-"))
        throw skein::error(errc::malformed, "it is not the result of a run: no format "
                                            "skein-result-N in it")
            .with_hint("name the folder of a run, or its result.json");
    if (*format != result_format)
        throw skein::error(errc::not_supported, fmt::format("not supported: format {}, this "
                                                            "program reads {}",
                                                            *format, result_format))
            .with_hint("read it with the release that wrote it, or a newer one");
    return read_result(*all, folder);
}

SKEIN_INLINE void write_result(const finished_run& run) {
    if (run.path.empty()) return;
    const auto file = join_path(run.path, result_file);
    try {
        const auto text = result_text(run);
        posix_disk disk(link_policy::refuse);
        disk.replace(file, as_bytes(std::string_view(text))).value();
    } catch (const skein::error& why) { // the run is what it was without the file
        logging::warn("train", fmt::format("{} cannot be written: {}", file, why.what()));
    }
}

} // namespace detail

SKEIN_INLINE finished_run load_result(const std::string& path) {
    posix_disk disk;
    auto file = path;
    if (const auto there = disk.status(path); there && there->is_directory)
        file = join_path(path, detail::result_file);
    const auto bytes = disk.read_whole(file, json_limits{}.max_bytes);
    if (!bytes && bytes.error().code() == errc::not_found)
        throw error(errc::not_found, fmt::format("{} is not there", file))
            .with_hint("a run has one when its training has ended: is it still at work, or was it "
                       "killed? Its metrics.csv and checkpoints are in its folder all the same");
    if (!bytes) throw bytes.error();
    try {
        return detail::result_of(as_text(*bytes), parent_path(file));
    } catch (const error& why) {
        throw error(why).with_where(file);
    }
}

} // namespace skein::train
