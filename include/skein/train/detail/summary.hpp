// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/train/summary.hpp>.

#include <skein/train/progress.hpp>
#include <skein/train/summary.hpp>

#include <fmt/core.h>

namespace skein::train {

inline std::string summary_text(const run_summary& run) {
    std::string out = "\n";
    auto row = [&](std::string_view label, const std::string& text) {
        out += fmt::format("  {:<12}{}\n", label, text);
    };
    const bool complete = run.stopped.empty() && run.steps >= run.total;
    out += fmt::format("{} {}\n\n", run.name.empty() ? "run" : run.name,
                       complete              ? "finished"
                       : run.stopped.empty() ? "stopped"
                                             : "stopped: " + run.stopped);
    row("steps", run.total == 0 ? fmt::format("{} in {}", run.steps, human_clock(run.seconds))
                                : fmt::format("{} of {} in {}", run.steps, run.total,
                                              human_clock(run.seconds)));
    std::string speed;
    if (run.tokens_per_s) speed = human_count(*run.tokens_per_s) + " tokens/s, ";
    speed += fmt::format("{} worker{}", run.workers, run.workers == 1 ? "" : "s");
    if (run.peak_rss_bytes) speed += ", at most " + human_bytes(*run.peak_rss_bytes) + " each";
    row("speed", speed);
    if (run.restarts > 0)
        row("failures", fmt::format("{} restart{} from a checkpoint", run.restarts,
                                    run.restarts == 1 ? "" : "s"));
    for (auto& metric : run.results) row(metric.name, fmt::format("{:.4f}", metric.value));
    if (!run.path.empty()) row("folder", run.path);
    if (!run.checkpoint.empty()) row("checkpoint", run.checkpoint);

    out += "\nnext\n";
    auto next = [&](const std::string& command, std::string_view what) {
        out += fmt::format("  {}\n      {}\n", command, what);
    };
    if (!run.command.empty() && !run.checkpoint.empty()) {
        const bool has_flag =
            (" " + run.command + " ").find(" " + run.resume_flag + " ") != std::string::npos;
        next(has_flag ? run.command : run.command + " " + run.resume_flag,
             complete ? "train on from the last checkpoint (give more steps)"
                      : "go on from the last checkpoint");
    }
    if (!run.path.empty()) {
        next("tensorboard --logdir " + run.path, "curves in the browser");
        next("xdg-open " + run.path + "/loss.svg", "the loss curve");
    }
    return out;
}

inline ordered_json summary_json(const run_summary& run) {
    ordered_json o = {{"event", "summary"},     {"name", run.name},        {"path", run.path},
                      {"steps", run.steps},     {"total", run.total},      {"seconds", run.seconds},
                      {"workers", run.workers}, {"restarts", run.restarts}};
    if (run.tokens_per_s) o["tokens_per_s"] = *run.tokens_per_s;
    if (run.peak_rss_bytes) o["peak_rss_bytes"] = *run.peak_rss_bytes;
    for (auto& metric : run.results) o["results"][metric.name] = metric.value;
    if (!run.checkpoint.empty()) o["checkpoint"] = run.checkpoint;
    if (!run.stopped.empty()) o["stopped"] = run.stopped;
    return o;
}

} // namespace skein::train
