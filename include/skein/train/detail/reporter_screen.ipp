// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a fit() says at last: bodies of <skein/train/reporter.hpp>.

#include <skein/train/detail/reporter_settings.ipp>
#include <skein/train/run_result.hpp>
#include <skein/wire/json.hpp>

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include <fmt/core.h>

namespace skein::train {

namespace detail {

/// What fit() has to say at last, of each fit() in turn; said when the context ends.
class last_screen {
public:
    last_screen() = default;
    last_screen(const last_screen&) = delete;
    last_screen& operator=(const last_screen&) = delete;
    ~last_screen() {
        for (const auto& text : texts_) print(text);
    }
    void add(std::string text, bool json) { texts_.push_back({std::move(text), json}); }
    /// The program says the last one itself.
    void drop_last() {
        if (!texts_.empty()) texts_.pop_back();
    }

private:
    struct screen_text {
        std::string text;
        bool json;
    };
    static void print(const screen_text& what) noexcept {
        auto* const to = what.json ? stdout : stderr;
        std::fflush(stdout); // behind what the program has said, also on one terminal
        std::fwrite(what.text.data(), 1, what.text.size(), to);
        std::fflush(to);
    }
    std::vector<screen_text> texts_;
};

[[nodiscard]] SKEIN_INLINE report::run_summary summary_of(const context& ctx,
                                                          const run_config& config,
                                                          const fit_result& result) {
    report::run_summary out;
    out.name = result.run_name.empty() ? config.name : result.run_name;
    out.asked = config.name;
    out.path = path_for_people(config, result.run_path);
    out.steps = result.steps;
    out.first = result.first_step;
    out.total = result.total > 0 ? result.total : static_cast<std::uint64_t>(config.max_steps);
    out.seconds = result.seconds;
    out.samples = config.tokens_per_sample <= 0;
    if (result.tokens_per_s > 0) out.tokens_per_s = result.tokens_per_s;
    out.peak_rss_bytes = result.peak_rss_bytes;
    out.workers = ctx.world_size();
    out.restarts = restarts_of(ctx);
    if (ctx.elastic() != nullptr) out.changes = ctx.attempt();
    out.results = {{"loss", result.loss}};
    if (result.val_loss == result.val_loss) out.results.push_back({"val_loss", result.val_loss});
    for (const auto& each : result.metrics) // those of training are in the rows
        if (each.name != "val_loss" && !each.name.starts_with("train_") && out.results.size() < 14)
            out.results.push_back(each);
    out.val_step = result.val_step;
    out.checkpoint = path_for_people(config, result.checkpoint);
    out.command = config.command;
    out.launcher = ctx.launcher();
    out.resume_flag = config.resume_flag;
    out.steps_flag = steps_flag_of(config);
    out.epochs = static_cast<std::uint64_t>(std::max<std::int64_t>(0, config.epochs));
    out.name_flag = config.name_flag;
    if (config.command.empty()) { // a program whose flags nobody knows
        out.command = command_line();
        out.resume_flag = out.steps_flag = out.name_flag = "";
    }
    if (result.stopped)
        out.stopped = result.stop_signal == SIGINT    ? "by SIGINT"
                      : result.stop_signal == SIGTERM ? "by SIGTERM"
                      : result.stop_reason.empty()    ? "on request"
                                                      : "by " + result.stop_reason;
    return out;
}

} // namespace detail

SKEIN_INLINE void leave_screen(const context& ctx, const run_config& config,
                               const fit_result& result) {
    detail::note_end(ctx, config, result);
    if (!ctx.is_first() || config.output == output_mode::quiet) return;
    const bool json = config.output == output_mode::json;
    const auto summary = detail::summary_of(ctx, config, result);
    if (!ctx.screen()) ctx.screen() = std::make_shared<detail::last_screen>();
    ctx.screen()->add(json ? report::summary_json(summary) + "\n" : report::summary_text(summary),
                      json);
}

SKEIN_INLINE report::run_summary summarize(const context& ctx, const run_config& config,
                                           const fit_result& result) {
    if (ctx.screen()) ctx.screen()->drop_last();
    return detail::summary_of(ctx, config, result);
}

} // namespace skein::train
