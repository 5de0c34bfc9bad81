// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/report/summary.hpp>.

#include <skein/report/progress.hpp>
#include <skein/wire/json.hpp>

#include <algorithm>
#include <string>

#include <fmt/core.h>

namespace skein::report {

namespace detail {

[[nodiscard]] SKEIN_INLINE bool is_complete(const run_summary& run) {
    return run.stopped.empty() && run.steps >= run.total;
}

/// Where a word of a command line ends, quotes and backslashes as in a shell.
SKEIN_INLINE std::size_t end_of_word(std::string_view command, std::size_t at) {
    char quote = '\0';
    for (; at < command.size(); ++at) {
        const char c = command[at];
        if (c == '\\' && quote != '\'')
            ++at;
        else if (quote != '\0')
            quote = c == quote ? '\0' : quote;
        else if (c == '\'' || c == '"')
            quote = c;
        else if (c == ' ')
            break;
    }
    return std::min(at, command.size());
}

/// Gives `flag` a value in a command line, in place or at its end.
SKEIN_INLINE void set_flag(std::string& command, const std::string& flag,
                           const std::string& value) {
    bool found = false;
    for (std::size_t at = 0; at < command.size();) {
        const auto end = end_of_word(command, at);
        const auto word = std::string_view(command).substr(at, end - at);
        if (word.starts_with(flag + "=")) {
            command.replace(at + flag.size() + 1, end - at - flag.size() - 1, value);
            at += flag.size() + 1 + value.size() + 1;
            found = true;
        } else if (word == flag && end < command.size()) {
            command.replace(end + 1, end_of_word(command, end + 1) - end - 1, value);
            at = end + 1 + value.size() + 1;
            found = true;
        } else {
            at = end + 1;
        }
    }
    if (!found) command += " " + flag + " " + value;
}

/// "2000 of 2000", and after a restart or a resume how many of them this start did.
[[nodiscard]] SKEIN_INLINE std::string steps_text(const run_summary& run) {
    auto text = run.total == 0 ? fmt::format("{}", run.steps)
                               : fmt::format("{} of {}", run.steps, run.total);
    if (run.first > 0 && run.steps > run.first)
        text += fmt::format(", {} of them since the {}", run.steps - run.first,
                            run.restarts > 0 ? "restart" : "resume");
    return text + " in " + human_clock(run.seconds);
}

} // namespace detail

SKEIN_INLINE std::string shell_word(std::string_view word) {
    if (!word.empty() && word.find_first_of(" \t\n'\"\\$&|;<>()*?#~`!") == word.npos)
        return std::string(word);
    std::string out = "'"; // in single quotes nothing is special but the quote itself
    for (const char c : word) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
    return out + "'";
}

SKEIN_INLINE std::string next_command(const run_summary& run) {
    auto command = run.command;
    if (detail::is_complete(run) && !run.steps_flag.empty())
        detail::set_flag(command, run.steps_flag,
                         std::to_string(2 * (run.epochs > 0 ? run.epochs : run.steps)));
    if (!run.asked.empty() && run.asked != run.name && !run.name_flag.empty())
        detail::set_flag(command, run.name_flag, shell_word(run.name));
    if (!run.resume_flag.empty() &&
        (" " + command + " ").find(" " + run.resume_flag + " ") == std::string::npos)
        command += " " + run.resume_flag;
    return command;
}

SKEIN_INLINE std::string summary_text(const run_summary& run) {
    std::string out = "\n";
    std::size_t width = 12;
    for (const auto& metric : run.results) width = std::max(width, metric.name.size() + 2);
    auto row = [&](std::string_view label, const std::string& text) {
        out += fmt::format("  {:<{}}{}\n", label, width, text);
    };
    const bool complete = detail::is_complete(run);
    out += fmt::format("{} {}\n\n", run.name.empty() ? "run" : run.name,
                       complete              ? "finished"
                       : run.stopped.empty() ? "stopped"
                                             : "stopped " + run.stopped);
    row("steps", detail::steps_text(run));
    auto workers = fmt::format("{} worker{}", run.workers, run.workers == 1 ? "" : "s");
    if (run.peak_rss_bytes) workers += ", at most " + human_bytes(*run.peak_rss_bytes) + " each";
    if (run.tokens_per_s)
        row("speed", fmt::format("{} {}/s, {}", human_count(*run.tokens_per_s),
                                 run.samples ? "samples" : "tokens", workers));
    else
        row("world", workers); // no step was run
    if (run.changes > 0)
        row("changes", fmt::format("{} of the workers, behind which the run went on", run.changes));
    if (run.restarts > 0)
        row("failures", fmt::format("{} restart{} from a checkpoint", run.restarts,
                                    run.restarts == 1 ? "" : "s"));
    for (auto& metric : run.results) {
        const bool older =
            metric.name == "val_loss" && run.val_step != 0 && run.val_step != run.steps;
        row(metric.name, fmt::format("{:.4f}", metric.value) +
                             (older ? fmt::format(" (step {})", run.val_step) : ""));
    }
    if (!run.path.empty()) row("folder", run.path);
    if (!run.checkpoint.empty()) row("checkpoint", run.checkpoint);

    out += "\nnext\n";
    auto next = [&](const std::string& command, std::string_view what) {
        out += fmt::format("  {}\n      {}\n", command, what);
    };
    if (!run.command.empty() && !run.checkpoint.empty()) {
        std::string what =
            complete ? "train on from the last checkpoint" : "go on from the last checkpoint";
        if (complete && run.steps_flag.empty())
            what += run.epochs > 0 ? ", with more epochs" : ", with more steps";
        if (run.resume_flag.empty()) what += ", with resume_mode::latest in its run_config";
        next((run.launcher.empty() ? "" : "under the same launcher: ") + next_command(run), what);
    }
    if (!run.path.empty()) {
        next("tensorboard --logdir " + shell_word(run.path), "curves in the browser");
        next("xdg-open " + shell_word(run.path + "/loss.svg"), "the loss curve");
    }
    return out;
}

SKEIN_INLINE std::string summary_json(const run_summary& run) {
    ordered_json o = {
        {"event", "summary"},     {"name", run.name},       {"path", run.path},
        {"steps", run.steps},     {"total", run.total},     {"first_step", run.first},
        {"seconds", run.seconds}, {"workers", run.workers}, {"restarts", run.restarts}};
    if (run.changes > 0) o["changes"] = run.changes;
    if (run.tokens_per_s) o[run.samples ? "samples_per_s" : "tokens_per_s"] = *run.tokens_per_s;
    if (run.peak_rss_bytes) o["peak_rss_bytes"] = *run.peak_rss_bytes;
    for (auto& metric : run.results) o["results"][metric.name] = metric.value;
    if (run.val_step != 0) o["val_step"] = run.val_step;
    if (!run.checkpoint.empty()) o["checkpoint"] = run.checkpoint;
    if (!run.stopped.empty()) o["stopped"] = run.stopped;
    for (auto& [name, text] : run.texts) o[name] = text;
    return dump_json(o);
}

} // namespace skein::report
