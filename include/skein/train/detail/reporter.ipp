// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/train/reporter.hpp>.

#include <skein/core/error.hpp>
#include <skein/core/this_process.hpp>
#include <skein/dist/comm_thread.hpp>
#include <skein/train/collective.hpp>
#include <skein/train/run_result.hpp>
#include <skein/wire/json.hpp>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include <fmt/core.h>

#include <unistd.h>

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
        {"global_batch", c.global_batch},
        {"accumulation", c.accumulation},
        {"seed", c.seed},
        {"clip", c.clip},
        {"clip_value", c.clip_value},
        {"precision", c.precision},
        {"eval_every", c.eval_every},
        {"eval_samples", c.eval_samples},
        {"scaling",
         {{"workers", c.scaling.workers.is_fixed() ? json(c.scaling.workers.most)
                                                   : json(to_string(c.scaling.workers))},
          {"threads", std::max(c.scaling.threads, 1)},
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
          {"stop_grace_s", seconds(c.failure.stop_grace)}}},
        {"tokens_per_sample", c.tokens_per_sample}};
}
SKEIN_INLINE std::vector<report::metric_value> timings(const step_timing& t) {
    return {{"data_s", t.data},       {"forward_s", t.forward},     {"backward_s", t.backward},
            {"exposed_s", t.exposed}, {"optimizer_s", t.optimizer}, {"overlap", t.overlap}};
}
} // namespace detail

namespace detail {
SKEIN_INLINE run_note note_of(const run_config& config, const std::string& name,
                              const std::string& path) {
    run_note note;
    note.name = name.empty() ? config.name : name;
    std::error_code failed; // main() may go to another folder
    if (!path.empty()) note.path = std::filesystem::absolute(path, failed).lexically_normal();
    if (failed) note.path = path;
    note.best_metric = config.checkpoint.keep_best.metric;
    note.best_is_lowest = config.checkpoint.keep_best.order == metric_order::lowest;
    return note;
}
/// From a checkpoint: in an elastic job the worlds are counted, in which nothing restarts.
[[nodiscard]] SKEIN_INLINE int restarts_of(const context& ctx) noexcept {
    return ctx.elastic() != nullptr ? 0 : ctx.attempt();
}

[[nodiscard]] SKEIN_INLINE std::string stopped_by(const fit_result& result) {
    if (!result.stopped) return {};
    return result.stop_signal == SIGINT    ? "SIGINT"
           : result.stop_signal == SIGTERM ? "SIGTERM"
           : result.stop_reason.empty()    ? "request"
                                           : result.stop_reason;
}
/// For whoever asks how the run ended; rank 0 writes it down.
SKEIN_INLINE void note_end(const context& ctx, const run_config& config, const fit_result& result) {
    auto note = note_of(config, result.run_name, result.run_path);
    note.has_ended = true;
    note.steps = result.steps;
    note.seconds = result.seconds;
    note.loss = result.loss;
    note.val_loss = result.val_loss;
    note.val_step = result.val_step;
    for (const auto& each : result.metrics)
        if (each.name != "val_loss") note.metrics.emplace_back(each.name, each.value);
    note.stopped_by = stopped_by(result);
    ctx.note_run(note);
    if (!ctx.is_first() || note.path.empty()) return;
    auto ended = finished_of(note);
    ended.world_size = ctx.world_size();
    ended.restarts = restarts_of(ctx);
    write_result(ended);
}
} // namespace detail

SKEIN_INLINE std::string job_of(const context& ctx) {
    if (!ctx.job_id().empty() && ctx.job_id() != "none") return ctx.job_id();
    const auto parent = ::getppid();
    const auto stat = read_small_file(fmt::format("/proc/{}/stat", parent).c_str());
    std::istringstream after_name(stat.substr(std::min(stat.size(), stat.rfind(')') + 1)));
    std::string started; // field 22, the name being field 2
    for (int field = 3; field <= 22; ++field) after_name >> started;
    return fmt::format("{}/{}/{}", boot_id(), parent, started);
}

namespace detail {
/// The folder of a job whose first rank was another one before. Nobody may have seen the end of that
/// one: it has the time of a lease to let go.
SKEIN_INLINE report::run_dir take_run_dir(const context& ctx, const std::string& root,
                                          const std::string& name) {
    report::run_dir_options how;
    how.resume = true;
    how.patience = time_constants::lan().dead_after;
    how.job = job_of(ctx);
    return report::run_dir::create(root, name, how);
}
} // namespace detail

SKEIN_INLINE report::run_dir open_again(const context& ctx, const std::string& root,
                                        const std::string& name) {
    if (ctx.attempt() == 0) return report::run_dir::create(root, name, {.resume = true});
    if (ctx.elastic() != nullptr) return detail::take_run_dir(ctx, root, name);
    try {
        const auto patience = time_constants::lan().rendezvous_timeout;
        return report::run_dir::create(root, name, {.resume = true, .patience = patience});
    } catch (const error& why) {
        if (why.code() != errc::usage) throw;
        throw error(errc::timeout, why.text()).with_hint(why.hint()); // the next may get it
    }
}

SKEIN_INLINE report::run_dir open_run_dir(const context& ctx, const run_config& config) {
    if (config.resume == resume_mode::latest) return open_again(ctx, config.runs_dir, config.name);
    if (ctx.attempt() == 0) return report::run_dir::create(config.runs_dir, config.name);
    auto name = config.name;
    const auto is_there = [&] {
        std::error_code ignored; // not ours, then; create() says what is wrong
        return std::filesystem::is_directory(config.runs_dir + "/" + name, ignored);
    };
    for (int number = 2; is_there(); ++number) {
        if (report::run_dir::written_by(config.runs_dir + "/" + name) == job_of(ctx))
            return open_again(ctx, config.runs_dir, name);
        name = fmt::format("{}.{}", config.name, number);
    }
    return report::run_dir::create(config.runs_dir, config.name); // none has got this far
}

SKEIN_INLINE std::string places_text(const std::vector<byte_buffer>& ranks) {
    std::string out = "pid", last;
    bool one = true;
    const auto host_of = [](const byte_buffer& rank) {
        const auto text = as_text(rank);
        return std::string(text.substr(std::min(text.size(), text.find(' ') + 1)));
    };
    for (const auto& rank : ranks) one = one && host_of(rank) == host_of(ranks[0]);
    for (std::size_t r = 0; r < ranks.size(); ++r) {
        if (r == 16) return out + " ...";
        out += " " + std::string(as_text(ranks[r]).substr(0, as_text(ranks[r]).find(' ')));
        const auto host = host_of(ranks[r]);
        if (!one && (r + 1 == ranks.size() || host_of(ranks[r + 1]) != host))
            out += " on " + host + (r + 1 == ranks.size() ? "" : ",");
    }
    return out;
}

SKEIN_INLINE std::string changed_settings(const report::run_dir& dir,
                                          const report::settings& settings) {
    std::optional<json> old;
    try {
        if (const auto text = dir.read_config()) old = parse_json(std::string_view(*text)).value();
    } catch (const error&) { // a damaged one is written anew
    }
    const json now = parse_json(settings.text()).value();
    std::string out;
    if (!old || !old->contains("settings") || !old->at("settings").is_object()) return out;
    for (const auto& [key, before] : old->at("settings").items())
        if (now.contains(key) && now.at(key) != before)
            out += fmt::format("{}{}: {} -> {}", out.empty() ? "" : ", ", key, dump_json(before),
                               dump_json(now.at(key)));
    return out;
}

SKEIN_INLINE reporter::reporter(const context& ctx, const run_config& config,
                                const report::settings& settings)
    : ctx_(&ctx), config_(&config), first_(ctx.is_first()) {
    places_ = gather_bytes(ctx, as_bytes(fmt::format("{} {}", ::getpid(), ctx.host())));
    if (!config.write_files && !config.checkpoint.enabled) return;
    if (first_) {
        dir_.emplace(open_run_dir(ctx, config));
        auto all = detail::config_json(config);
        all["name"] = dir_->name(); // the one in use
        all["world_size"] = ctx.world_size();
        all["job_id"] = job_of(ctx);
        all["settings"] = parse_json(settings.text()).value();
        changed_ = changed_settings(*dir_, settings);
        config_text_ = dump_json(all, 2) + "\n";
        // The folder of a run that may refuse to go on stays as it is until begin().
        if (config.resume != resume_mode::latest && ctx.attempt() == 0)
            dir_->write_config(std::exchange(config_text_, {}));
        path_ = dir_->path();
        name_ = dir_->name();
    }
    path_ = from_first(ctx, path_);
    name_ = from_first(ctx, name_);
    ctx.note_run(detail::note_of(config, name_, path_));
}

SKEIN_INLINE reporter::reporter(const context& ctx, const run_config& config, std::string name,
                                std::string path)
    : ctx_(&ctx), config_(&config), first_(false), path_(std::move(path)), name_(std::move(name)) {
    ctx.note_run(detail::note_of(config, name_, path_));
}

SKEIN_INLINE reporter::~reporter() = default;

SKEIN_INLINE void reporter::begin(const start_info& start) {
    if (!first_) return;
    if (dir_) dir_->truncate_after(start.first_step);
    if (dir_) dir_->remove_result(); // of an end that is none any more
    if (dir_ && !config_text_.empty()) dir_->write_config(std::exchange(config_text_, {}));
    show(start);
    greet(start);
}

SKEIN_INLINE void reporter::show(const start_info& start) {
    report::progress_options options;
    options.name = name_.empty() ? config_->name : name_;
    options.total = start.total_steps;
    options.first = start.first_step;
    options.samples = config_->tokens_per_sample <= 0;
    switch (config_->output) {
    case output_mode::automatic: options.mode = report::progress_mode::automatic; break;
    case output_mode::plain: options.mode = report::progress_mode::plain; break;
    case output_mode::quiet: options.mode = report::progress_mode::quiet; break;
    case output_mode::json: options.mode = report::progress_mode::json_lines; break;
    }
    if (config_->output == output_mode::json)
        options.write = [](std::string_view text) {
            std::fwrite(text.data(), 1, text.size(), stdout);
            std::fflush(stdout);
        };
    show_ = std::make_unique<report::progress>(std::move(options));
}

SKEIN_INLINE bool reporter::takes_over() const noexcept { return !first_ && ctx_->is_first(); }

SKEIN_INLINE void reporter::rebind(const start_info& start, std::uint64_t rows,
                                   const std::string& why) {
    if (first_ && !ctx_->is_first()) { // another rank takes over; its lock wants to be free
        dir_.reset();
        show_.reset();
        first_ = false;
    }
    const auto before = places_.size();
    places_ = gather_bytes(*ctx_, as_bytes(fmt::format("{} {}", ::getpid(), ctx_->host())));
    if (!ctx_->is_first()) return;
    if (!show_ && first_) show(start); // the world broke before it was told where the run begins
    if (!std::exchange(first_, true)) {
        if (!path_.empty())
            dir_.emplace(detail::take_run_dir(*ctx_, config_->runs_dir, name_));
        show(start);
    }
    if (dir_) dir_->truncate_after(rows);
    show_->notice(fmt::format("after step {} the run goes on with {} worker{} instead of {}: {}{}",
                              start.first_step, places_.size(), places_.size() == 1 ? "" : "s",
                              before, places_text(places_), why.empty() ? "" : "; " + why));
}

SKEIN_INLINE std::string reporter::changed(std::uint64_t step, const world_news& news) {
    const auto row = dump_json(ordered_json{{"step", step},
                                            {"rule", "world"},
                                            {"what", "workers"},
                                            {"from", news.before},
                                            {"to", ctx_->world_size()},
                                            {"why", news.change.why},
                                            {"generation", news.change.generation},
                                            {"stall_s", news.stall},
                                            {"bytes", news.bytes}});
    if (!first_) return row;
    if (show_->mode() == report::progress_mode::json_lines)
        show_->event("{\"event\":\"world\"," + row.substr(1));
    add_event(row);
    draw_world(step);
    return row;
}

SKEIN_INLINE void reporter::add_event(const std::string& row) {
    if (dir_ && config_->write_files)
        attempt([&] { dir_->append_event(row); }, events_failing_, "a row of events.jsonl");
}

/// What fails here costs a curve, not the training: said once, tried again with the next call.
template <class Write>
void reporter::attempt(Write write, bool& failing, std::string_view what) {
    try {
        write();
        failing = false;
    } catch (const error& why) {
        if (!std::exchange(failing, true) && show_)
            show_->failure(fmt::format(
                "{} cannot be written: {}; training goes on, it is tried again", what, why.what()));
    }
}

SKEIN_INLINE void reporter::step(const step_info& now,
                                 const std::vector<report::metric_value>& evaluated,
                                 const std::vector<report::metric_array>& arrays) {
    if (!first_) return;
    last_step_ = now.step;
    const auto smooth = [](double before, double newest) {
        return before == 0.0 ? newest : 0.9 * before + 0.1 * newest;
    };
    average_ = smooth(average_, now.seconds);
    waited_ = smooth(waited_, now.timing.data);
    write_row(now, evaluated, arrays);
    seconds_ += now.seconds;
    const auto parts = detail::timings(now.timing);
    spent_.resize(parts.size());
    for (std::size_t i = 0; i < parts.size(); ++i) spent_[i] += parts[i].value;
    report::progress_update update;
    update.step = now.step;
    update.loss = now.loss;
    update.step_seconds = average_;
    if (average_ > 0) update.data_share = waited_ / average_;
    if (average_ > 0) update.tokens_per_s = now.tokens_per_s * now.seconds / average_;
    update.more = {{"lr", now.lr}};
    for (const auto& m : *now.metrics)
        if (m.name != "loss" && m.name != "lr") update.also.emplace_back(m.name, m.value);
    for (const auto& t : parts) update.also.emplace_back(t.name, t.value);
    show_->update(update);
    if (evaluated.empty()) return;
    say_evaluation(now.step, evaluated);
    draw();
}

SKEIN_INLINE void reporter::write_row(const step_info& now,
                                      const std::vector<report::metric_value>& evaluated,
                                      const std::vector<report::metric_array>& arrays) {
    if (!dir_ || !config_->write_files) return;
    report::metrics_row row{.step = now.step, .values = *now.metrics, .timings = {}, .arrays = {}};
    row.values.insert(row.values.end(), evaluated.begin(), evaluated.end());
    if (now.arrays != nullptr) row.arrays = *now.arrays;
    row.arrays.insert(row.arrays.end(), arrays.begin(), arrays.end());
    row.timings = {{"step_seconds", now.seconds}};
    if (now.tokens_per_s > 0) { // else it is a report, of which nobody knows
        row.timings.insert(
            row.timings.begin(),
            {config_->tokens_per_sample > 0 ? "tokens_per_s" : "samples_per_s", now.tokens_per_s});
        for (const auto& each : detail::timings(now.timing)) row.timings.push_back(each);
    }
    attempt([&] { dir_->append(row); }, rows_failing_, "a row of metrics");
}

SKEIN_INLINE void reporter::say_evaluation(std::uint64_t step,
                                           const std::vector<report::metric_value>& evaluated) {
    if (show_->mode() == report::progress_mode::json_lines) {
        ordered_json o = {{"event", "eval"}, {"step", step}};
        for (const auto& m : evaluated) o["metrics"][m.name] = m.value;
        return show_->event(dump_json(o));
    }
    std::string text = fmt::format("step {}:", step);
    for (const auto& m : evaluated) text += fmt::format(" {} {:.4f}", m.name, m.value);
    show_->note(text);
}

SKEIN_INLINE void reporter::decided(const run_event& event) {
    if (!first_) return;
    const auto row = dump_json(
        ordered_json{{"step", event.step},
                     {"rule", event.rule},
                     {"what", event.what},
                     {"from", ordered_json(parse_json(std::string_view(event.from)).value())},
                     {"to", ordered_json(parse_json(std::string_view(event.to)).value())},
                     {"why", event.why}});
    if (show_->mode() == report::progress_mode::json_lines)
        show_->event("{\"event\":\"decision\"," + row.substr(1));
    else
        show_->note(fmt::format("step {}: {}: {} {} -> {}{}{}", event.step, event.rule, event.what,
                                event.from, event.to, event.why.empty() ? "" : ": ", event.why));
    if (dir_ && config_->write_files)
        attempt([&] { dir_->append_event(row); }, events_failing_, "a row of events.jsonl");
}

SKEIN_INLINE void reporter::draw_world(std::uint64_t step) {
    if (dir_ && config_->write_files && ctx_->elastic() != nullptr)
        attempt([&] { dir_->write_world_svg(step, name_); }, curve_failing_, "world.svg");
}

SKEIN_INLINE void reporter::set_total(std::uint64_t steps) {
    if (show_) show_->set_total(steps);
}

SKEIN_INLINE void reporter::saved(const checkpoint_info& checkpoint) {
    if (!show_) return;
    show_->event(dump_json(ordered_json{{"event", "checkpoint"},
                                        {"step", checkpoint.step},
                                        {"path", checkpoint.path},
                                        {"bytes", checkpoint.bytes},
                                        {"seconds", checkpoint.seconds}}));
}

SKEIN_INLINE void reporter::note(const std::string& text) {
    if (show_) show_->note(text);
}
SKEIN_INLINE void reporter::notice(const std::string& text) {
    if (show_) show_->notice(text);
}
SKEIN_INLINE void reporter::finish() {
    if (dir_) attempt([&] { dir_->flush(); }, rows_failing_, "a row of metrics");
    if (dir_ && dir_->waiting() > 0)
        show_->failure(
            fmt::format("{} rows of metrics are lost: they could not be written", dir_->waiting()));
    if (show_) show_->finish();
    say_times();
    draw();
    draw_world(last_step_);
}

/// Where the time of all steps went, in one line.
SKEIN_INLINE void reporter::say_times() {
    if (!show_ || seconds_ <= 0 || spent_.size() != 6) return;
    const auto share = [&](std::size_t i) { return 100.0 * spent_[i] / seconds_; };
    auto text = fmt::format(
        "step time, each of its slowest rank: data {:.0f} %, forward {:.0f} %, backward {:.0f} %, "
        "optimizer {:.0f} %",
        share(0), share(1), share(2), share(4));
    if (ctx_->world_size() > 1) text += fmt::format(", waiting for other ranks {:.0f} %", share(3));
    show_->note(text);
}

/// What runs where.
SKEIN_INLINE void reporter::tell_start(const start_info& start, const std::string& name) {
    const auto* comm = ctx_->comm();
    if (show_->mode() == report::progress_mode::json_lines) {
        ordered_json o = {{"event", "start"},
                          {"name", name},
                          {"path", path_},
                          {"parameters", start.parameters},
                          {"first_step", start.first_step},
                          {"total", start.total_steps},
                          {"workers", ctx_->world_size()},
                          {"strategy", start.strategy}};
        if (comm != nullptr) o["communicator"] = comm->name();
        for (const auto& rank : places_)
            o["pids"].push_back(std::strtol(std::string(as_text(rank)).c_str(), nullptr, 10));
        show_->event(dump_json(o));
    } else {
        const auto steps = start.total_steps > 0 ? fmt::format("{} steps of ", start.total_steps)
                                                 : std::string("steps of ");
        auto what = fmt::format("{}: {} parameters, {}{} samples", name,
                                report::human_count(static_cast<double>(start.parameters)), steps,
                                config_->global_batch);
        if (!start.epochs.empty()) what += ", " + start.epochs;
        if (!path_.empty()) what += ", files in " + path_;
        show_->note(what);
        show_->note(fmt::format(
            "{}{}{}{} worker{}: {}", start.strategy, comm != nullptr ? " over " + comm->name() : "",
            start.strategy.empty() && comm == nullptr ? "" : ", ", ctx_->world_size(),
            ctx_->world_size() == 1 ? "" : "s", places_text(places_)));
    }
}

/// What runs where, and what is not as it was asked for.
SKEIN_INLINE void reporter::greet(const start_info& start) {
    const auto name = name_.empty() ? config_->name : name_;
    tell_start(start, name);
    if (dir_)
        for (const auto& text : dir_->notices()) show_->notice(text);
    if (!start.resumed_from.empty()) {
        show_->note(
            fmt::format("resumed after step {} from {}", start.first_step, start.resumed_from));
        if (!changed_.empty()) show_->notice("the run goes on with other settings: " + changed_);
    } else if (config_->resume == resume_mode::latest && ctx_->attempt() == 0) {
        show_->notice(fmt::format("nothing to resume in {}: starting at step 0",
                                  path_.empty() ? config_->runs_dir + "/" + name : path_));
    }
    if (start.first_step > 0 && start.total_steps > 0 && start.first_step >= start.total_steps)
        show_->notice(fmt::format("nothing left to train: step {} of {}; give more steps{}",
                                  start.first_step, start.total_steps,
                                  config_->command.empty() || config_->steps_flag.empty()
                                      ? ""
                                      : " (" + config_->steps_flag + ")"));
}

SKEIN_INLINE void reporter::draw() {
    if (!dir_ || !config_->write_files) return;
    attempt([&] { dir_->write_svg({"loss", "val_loss"}, name_); }, curve_failing_, "loss.svg");
}

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

/// A path as it works where the program was started, to which a person goes: main() may have gone
/// to another folder.
[[nodiscard]] SKEIN_INLINE std::string path_for_people(const std::string& path) {
    if (path.empty() || path.starts_with('/') || !has_left_start_folder()) return path;
    std::error_code failed;
    const auto whole = std::filesystem::absolute(path, failed);
    return failed ? path : whole.lexically_normal().string();
}

[[nodiscard]] SKEIN_INLINE report::run_summary summary_of(const context& ctx,
                                                          const run_config& config,
                                                          const fit_result& result) {
    report::run_summary out;
    out.name = result.run_name.empty() ? config.name : result.run_name;
    out.asked = config.name;
    out.path = path_for_people(result.run_path);
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
    out.checkpoint = path_for_people(result.checkpoint);
    out.command = config.command;
    out.launcher = ctx.launcher();
    out.resume_flag = config.resume_flag;
    out.steps_flag = config.steps_flag;
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
