// SPDX-License-Identifier: Apache-2.0
#pragma once
// Rank 0's voice and pen: the run's folder, its metric files, the progress line. Silent elsewhere.
//
// Every rank owns one and calls it alike; only rank 0 opens files and prints. The folder's path is
// shared at construction, so that all ranks put their checkpoint shards into the same place.

#include <skein/train/callbacks.hpp>
#include <skein/train/collective.hpp>
#include <skein/train/context.hpp>
#include <skein/train/progress.hpp>
#include <skein/train/run_config.hpp>
#include <skein/train/run_dir.hpp>
#include <skein/train/summary.hpp>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <fmt/core.h>

#include <unistd.h>

namespace skein::train {

/// The settings of a run as JSON, for config.json and for people.
[[nodiscard]] inline json to_json(const run_config& c) {
    return json{{"name", c.name},
                {"max_steps", c.max_steps},
                {"global_batch", c.global_batch},
                {"accumulation", c.accumulation},
                {"seed", c.seed},
                {"clip", c.clip},
                {"precision", c.precision},
                {"eval_every", c.eval_every},
                {"eval_samples", c.eval_samples},
                {"checkpoint_every", c.checkpoint_every},
                {"keep_last", c.keep_last},
                {"keep_best", c.keep_best},
                {"best_metric", c.best_metric},
                {"max_failures", c.max_failures},
                {"tokens_per_sample", c.tokens_per_sample}};
}

/// Tells the attempts of one job from those of others: the launcher's job id; without one (torchrun's
/// default id is "none" for every job) the launcher's process, which lives as long as the job. Rank 0.
[[nodiscard]] inline std::string job_of(const context& ctx) {
    if (!ctx.job_id().empty() && ctx.job_id() != "none") return ctx.job_id();
    const auto parent = ::getppid();
    std::string stat, boot;
    std::getline(std::ifstream(fmt::format("/proc/{}/stat", parent)), stat);
    std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
    std::istringstream after_name(stat.substr(std::min(stat.size(), stat.rfind(')') + 1)));
    std::string started; // field 22, the name being field 2
    for (int field = 3; field <= 22; ++field) after_name >> started;
    return fmt::format("{}/{}/{}", boot, parent, started);
}

/// The folder of this run: with resume the one of that name; after a restart the one this job made
/// (its number may differ from the name asked for); else a new one. Rank 0 only.
[[nodiscard]] inline run_dir open_run_dir(const context& ctx, const run_config& config) {
    if (config.resume == resume_mode::latest)
        return run_dir::create(config.runs_dir, config.name, {.resume = true});
    if (ctx.attempt() == 0) return run_dir::create(config.runs_dir, config.name);
    auto name = config.name;
    for (int number = 2; std::filesystem::is_directory(config.runs_dir + "/" + name); ++number) {
        if (run_dir::written_by(config.runs_dir + "/" + name) == job_of(ctx))
            return run_dir::create(config.runs_dir, name, {.resume = true});
        name = fmt::format("{}-{}", config.name, number);
    }
    return run_dir::create(config.runs_dir, config.name); // the first attempt did not get this far
}

/// See the file's head. Not thread-safe.
class reporter {
public:
    /// Collective. settings: the user's part of config.json.
    reporter(const context& ctx, const run_config& config, const json& settings)
        : config_(&config), first_(ctx.is_first()) {
        if (!config.write_files && !config.checkpoints) return;
        if (first_) {
            dir_.emplace(open_run_dir(ctx, config));
            auto all = to_json(config);
            all["world_size"] = ctx.world_size();
            all["job_id"] = job_of(ctx);
            all["settings"] = settings;
            dir_->write_config(all);
            path_ = dir_->path();
            name_ = dir_->name();
        }
        path_ = from_first(ctx, path_);
        name_ = from_first(ctx, name_);
    }

    [[nodiscard]] const std::string& path() const noexcept { return path_; }
    [[nodiscard]] const std::string& name() const noexcept { return name_; }
    [[nodiscard]] std::string checkpoints() const { return path_ + "/checkpoints"; }

    /// Once, when it is known where the run begins. Rows after the first step are dropped.
    void begin(const start_info& start) {
        if (!first_) return;
        if (dir_) dir_->truncate_after(start.first_step);
        progress_options options;
        options.name = name_.empty() ? config_->name : name_;
        options.total = start.total_steps;
        options.first = start.first_step;
        switch (config_->output) {
        case output_mode::automatic: options.mode = progress_mode::automatic; break;
        case output_mode::plain: options.mode = progress_mode::plain; break;
        case output_mode::quiet: options.mode = progress_mode::quiet; break;
        case output_mode::json: options.mode = progress_mode::json_lines; break;
        }
        if (config_->output == output_mode::json)
            options.write = [](std::string_view text) {
                std::fwrite(text.data(), 1, text.size(), stdout);
                std::fflush(stdout);
            };
        show_ = std::make_unique<progress>(std::move(options));
        if (!start.resumed_from.empty())
            show_->note(
                fmt::format("resumed after step {} from {}", start.first_step, start.resumed_from));
    }

    /// One step's row; `evaluated` holds this step's evaluation, or nothing.
    void step(const step_info& now, const std::vector<metric_value>& evaluated) {
        if (!first_) return;
        average_ = average_ == 0.0 ? now.seconds : 0.9 * average_ + 0.1 * now.seconds;
        const double tokens = now.tokens_per_s * now.seconds;
        if (dir_ && config_->write_files) {
            metrics_row row{.step = now.step, .values = *now.metrics, .timings = {}};
            row.values.insert(row.values.end(), evaluated.begin(), evaluated.end());
            row.timings = {{"tokens_per_s", now.tokens_per_s}, {"step_seconds", now.seconds}};
            dir_->append(row);
        }
        progress_update update;
        update.step = now.step;
        update.loss = now.loss;
        update.step_seconds = average_;
        if (average_ > 0) update.tokens_per_s = tokens / average_;
        update.more = {{"lr", now.lr}};
        show_->update(update);
        if (evaluated.empty()) return;
        std::string text = fmt::format("step {}:", now.step);
        for (const auto& m : evaluated) text += fmt::format(" {} {:.4f}", m.name, m.value);
        show_->note(text);
        draw();
    }

    void note(const std::string& text) {
        if (show_) show_->note(text);
    }
    void finish() {
        if (show_) show_->finish();
        draw();
    }

private:
    void draw() {
        if (dir_ && config_->write_files) dir_->write_svg({"loss", "val_loss"}, name_);
    }

    const run_config* config_;
    bool first_;
    std::string path_, name_;
    std::optional<run_dir> dir_;
    std::unique_ptr<progress> show_;
    double average_ = 0.0; // of the seconds per step, exponential
};

/// The last screen for a finished fit(); add to `results` before summary_text().
[[nodiscard]] inline run_summary summarize(const context& ctx, const run_config& config,
                                           const fit_result& result) {
    run_summary out;
    out.name = result.run_name.empty() ? config.name : result.run_name;
    out.path = result.run_path;
    out.steps = result.steps;
    out.total = static_cast<std::uint64_t>(config.max_steps);
    out.seconds = result.seconds;
    if (result.tokens_per_s > 0) out.tokens_per_s = result.tokens_per_s;
    out.peak_rss_bytes = result.peak_rss_bytes;
    out.workers = ctx.world_size();
    out.restarts = ctx.attempt();
    out.results = {{"loss", result.loss}};
    if (result.val_loss == result.val_loss) out.results.push_back({"val_loss", result.val_loss});
    out.checkpoint = result.checkpoint;
    out.command = config.command;
    if (result.stopped) out.stopped = "stopped on request";
    return out;
}

} // namespace skein::train
