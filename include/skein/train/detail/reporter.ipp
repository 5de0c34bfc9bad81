// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/train/reporter.hpp>.

#include <skein/core/clock.hpp>
#include <skein/core/error.hpp>
#include <skein/core/posix_disk.hpp>
#include <skein/core/this_process.hpp>
#include <skein/dist/comm_thread.hpp>
#include <skein/train/collective.hpp>
#include <skein/train/detail/reporter_settings.ipp>
#include <skein/train/run_result.hpp>
#include <skein/wire/json.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <utility>

#include <fmt/core.h>

#include <unistd.h>

namespace skein::train {

namespace detail {
SKEIN_INLINE std::vector<report::metric_value> timings(const step_timing& t) {
    return {{"data_s", t.data},       {"forward_s", t.forward},     {"backward_s", t.backward},
            {"exposed_s", t.exposed}, {"optimizer_s", t.optimizer}, {"overlap", t.overlap}};
}
} // namespace detail

namespace detail {
/// Of what a run costs: seconds that never go back.
[[nodiscard]] SKEIN_INLINE double cost_clock() {
    return to_seconds(system_clock().now().time_since_epoch());
}
[[nodiscard]] SKEIN_INLINE double unix_now() { return to_seconds(system_clock().wall()); }
/// Longer than that nobody has waited for the restart of a job.
inline constexpr double longest_restart_s = 600.0;

/// What was spent before, and since.
[[nodiscard]] SKEIN_INLINE report::run_spending sum_of(report::run_spending before,
                                                       const report::run_spending& since) {
    before.seconds += since.seconds;
    before.worker_seconds += since.worker_seconds;
    for (const auto& [kind, seconds] : since.by_kind) before.by_kind[kind] += seconds;
    return before;
}

SKEIN_INLINE run_note note_of(const run_config& config, const std::string& name,
                              const std::string& path) {
    run_note note;
    note.name = name.empty() ? config.name : name;
    note.path = whole_path(path);
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
    note_worlds(ctx, ended);
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
    posix_disk disk;
    const auto is_there = [&] { // else it is not ours; create() says what is wrong
        const auto seen = disk.status(config.runs_dir + "/" + name);
        return seen && seen->is_directory;
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

SKEIN_INLINE reporter::reporter(const context& ctx, const run_config& config,
                                const report::settings& settings)
    : ctx_(&ctx), config_(&config), first_(ctx.is_first()) {
    learn_workers();
    meter_.begin(detail::cost_clock(), workers_);
    if (!config.write_files && !config.checkpoint.enabled) return;
    if (first_) {
        auto there = config;
        there.runs_dir = detail::whole_path(config.runs_dir);
        dir_.emplace(open_run_dir(ctx, there));
        auto all = detail::config_json(config);
        all["name"] = dir_->name(); // the one in use
        all["world_size"] = ctx.world_size();
        all["job_id"] = job_of(ctx);
        all["settings"] = parse_json(settings.text()).value();
        changed_ = changed_config(*dir_, config);
        if (auto more = changed_settings(*dir_, settings); !more.empty())
            changed_ += (changed_.empty() ? "" : ", ") + more;
        config_text_ = dump_json(all, 2) + "\n";
        // The folder of a run that may refuse to go on stays as it is until begin().
        if (config.resume != resume_mode::latest && ctx.attempt() == 0)
            dir_->write_config(std::exchange(config_text_, {}));
        name_ = dir_->name();
    }
    name_ = from_first(ctx, name_);
    path_ = detail::path_of_run(ctx, config, name_);
    ctx.note_run(detail::note_of(config, name_, path_));
}

SKEIN_INLINE reporter::reporter(const context& ctx, const run_config& config, std::string name,
                                std::string path)
    : ctx_(&ctx), config_(&config), first_(false), path_(std::move(path)), name_(std::move(name)) {
    meter_.begin(detail::cost_clock(), {});
    ctx.note_run(detail::note_of(config, name_, path_));
}

SKEIN_INLINE reporter::~reporter() = default;

/// Who the ranks are. Collective.
SKEIN_INLINE void reporter::learn_workers() {
    const char* const said = std::getenv("SKEIN_WORKER_KIND");
    const auto kind = report::parse_worker_kind(said != nullptr ? said : "");
    if (!kind) // of who joins a run: it is refused, and the others go on
        throw error(places_.empty() && !first_ && ctx_->elastic() != nullptr ? errc::mismatch
                                                                             : errc::usage,
                    std::string(kind.error().text()))
            .with_hint(kind.error().hint());
    places_ =
        gather_bytes(*ctx_, as_bytes(fmt::format("{} {}\n{}", ::getpid(), ctx_->host(), *kind)));
    workers_ = {.all = static_cast<int>(places_.size()), .by_kind = {}};
    for (auto& rank : places_) {
        const auto text = as_text(rank);
        const auto end = text.rfind('\n');
        const std::string of_rank(text.substr(end + 1));
        rank.resize(end);
        if (!of_rank.empty()) workers_.by_kind[of_rank] += 1;
    }
}

/// The run goes on from what it had cost: also what was done behind the checkpoint, and the time in
/// which its job has started it again.
SKEIN_INLINE void reporter::resume_costs() {
    auto since = meter_.count(detail::cost_clock());
    if (!dir_) return;
    const auto before = report::last_spending(dir_->path());
    if (ctx_->attempt() > 0 && before.unix_seconds > 0) {
        report::worker_meter gap;
        gap.begin(0.0, workers_);
        const double passed = detail::unix_now() - before.unix_seconds - since.seconds;
        since =
            detail::sum_of(since, gap.count(std::clamp(passed, 0.0, detail::longest_restart_s)));
    }
    meter_.begin(detail::cost_clock(), workers_, detail::sum_of(before, since));
}

SKEIN_INLINE void reporter::begin(const start_info& start, bool end_due) {
    if (!first_) return;
    resume_costs();
    keep_rows(start.first_step, end_due);
    if (dir_) dir_->remove_result(); // of an end that is none any more
    if (dir_ && !config_text_.empty()) dir_->write_config(std::exchange(config_text_, {}));
    show(start);
    greet(start, end_due);
    last_step_ = start.first_step;
    total_ = start.total_steps;
    tell(true);
}

/// The files go on behind a step. Its row may be there and its checkpoint, too: a row that is written
/// again stays until then, as nobody else writes it if this process dies before.
SKEIN_INLINE void reporter::keep_rows(std::uint64_t step, bool rewrites) {
    if (!dir_) return;
    dir_->truncate_after(step);
    if (rewrites && step > 0) dir_->rewrite_after(step - 1);
}

/// progress.json, once a second at most while steps are made.
SKEIN_INLINE void reporter::tell(bool at_once, const fit_result* over) {
    if (!dir_ || !config_->write_files) return;
    const auto now = system_clock().now();
    if (!at_once && now < told_at_ + std::chrono::seconds(1)) return;
    told_at_ = now;
    ordered_json all{{"format", "skein-progress-1"}, {"step", over ? over->steps : last_step_}};
    if (total_ > 0) all["steps"] = total_;
    if (config_->epochs > 0 || epoch_ > 0) all["epoch"] = epoch_;
    if (config_->epochs > 0) all["epochs"] = config_->epochs;
    all["workers"] = ctx_->world_size();
    if (!config_->scaling.workers.is_fixed()) all["range"] = to_string(config_->scaling.workers);
    finished_run so_far;
    detail::note_worlds(*ctx_, so_far);
    if (so_far.worlds > 1) all["worlds"] = so_far.worlds;
    if (so_far.worlds > 1) all["last_change"] = so_far.last_change.substr(0, 1024);
    if (pace_ > 0) all[config_->tokens_per_sample > 0 ? "tokens_per_s" : "samples_per_s"] = pace_;
    all["is_over"] = over != nullptr;
    all["stopped_by"] = over != nullptr ? detail::stopped_by(*over).substr(0, 1024) : "";
    dir_->write_progress(dump_json(all));
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

SKEIN_INLINE int reporter::hosts() const {
    std::set<std::string_view> all;
    for (const auto& rank : places_) {
        const auto text = as_text(rank);
        all.insert(text.substr(std::min(text.size(), text.find(' ') + 1)));
    }
    return std::max(1, static_cast<int>(all.size()));
}

SKEIN_INLINE bool reporter::takes_over() const noexcept { return !first_ && ctx_->is_first(); }

SKEIN_INLINE void reporter::rebind(const start_info& start, bool rewrites, const std::string& why) {
    if (first_ && !ctx_->is_first()) { // another rank takes over; its lock wants to be free
        dir_.reset();
        show_.reset();
        first_ = false;
    }
    const auto before = places_.size();
    const auto since = meter_.count(detail::cost_clock());
    learn_workers();
    meter_.change(detail::cost_clock(), workers_);
    if (!ctx_->is_first()) return;
    if (!show_ && first_) show(start); // the world broke before it was told where the run begins
    if (!std::exchange(first_, true)) {
        if (!path_.empty()) dir_.emplace(detail::take_run_dir(*ctx_, parent_path(path_), name_));
        if (dir_) // from its own last row on
            meter_.begin(detail::cost_clock(), workers_,
                         detail::sum_of(report::last_spending(dir_->path()), since));
        show(start);
    }
    keep_rows(start.first_step, rewrites);
    last_step_ = start.first_step;
    if (start.total_steps > 0) total_ = start.total_steps;
    tell(true);
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
    if (!first_) return meter_.begin(detail::cost_clock(), workers_);
    last_step_ = now.step;
    const auto smooth = [](double before, double newest) {
        return before == 0.0 ? newest : 0.9 * before + 0.1 * newest;
    };
    average_ = smooth(average_, now.seconds);
    waited_ = smooth(waited_, now.own.data);
    between_rows_ = smooth(between_rows_, now.since_row);
    write_row(now, evaluated, arrays);
    seconds_ += now.since_row;
    const auto parts = detail::timings(now.timing);
    const double spent[] = {now.own.data, now.own.forward, now.own.backward, now.own.optimizer,
                            now.own.exposed};
    for (std::size_t i = 0; i < spent_.size(); ++i) spent_[i] += spent[i];
    report::progress_update update;
    update.step = now.step;
    update.loss = now.loss;
    update.step_seconds = average_;
    if (between_rows_ > 0) update.data_share = waited_ / between_rows_;
    if (average_ > 0) update.tokens_per_s = now.tokens_per_s * now.seconds / average_;
    epoch_ = now.epoch;
    pace_ = update.tokens_per_s.value_or(0.0);
    tell(false);
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
    report::metrics_row row{
        .step = now.step, .values = *now.metrics, .timings = {}, .arrays = {}, .spent = {}};
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
    row.spent = meter_.count(detail::cost_clock());
    row.spent->unix_seconds = detail::unix_now();
    row.workers = places_.size();
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
    total_ = steps;
    tell(false);
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
SKEIN_INLINE void reporter::finish(const fit_result& result) {
    if (dir_) attempt([&] { dir_->flush(); }, rows_failing_, "a row of metrics");
    if (dir_ && dir_->waiting() > 0)
        show_->failure(
            fmt::format("{} rows of metrics are lost: they could not be written", dir_->waiting()));
    if (show_) show_->finish();
    tell(true, &result);
    say_times();
    draw();
    draw_world(last_step_);
}

namespace detail {
SKEIN_INLINE std::array<int, 6> whole_shares(const std::array<double, 5>& parts, double whole) {
    std::array<int, 6> shares{};
    int sum = 0;
    for (std::size_t i = 0; i < parts.size(); ++i) {
        shares[i] = static_cast<int>(std::lround(100.0 * std::clamp(parts[i] / whole, 0.0, 1.0)));
        sum += shares[i];
    }
    shares.back() = std::max(0, 100 - sum);
    if (sum > 100)
        *std::ranges::max_element(shares) -= sum - 100; // rounded up more often than down
    return shares;
}
} // namespace detail

/// Where the time of all steps went, in one line.
SKEIN_INLINE void reporter::say_times() {
    if (!show_ || seconds_ <= 0) return;
    const auto share = detail::whole_shares(spent_, seconds_);
    auto text =
        fmt::format("time of rank 0: data {} %, forward {} %, backward {} %, optimizer {} %",
                    share[0], share[1], share[2], share[3]);
    if (ctx_->world_size() > 1) text += fmt::format(", waiting for other ranks {} %", share[4]);
    show_->note(text + fmt::format(", the rest {} %", share[5]));
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
        if (!path_.empty()) what += ", files in " + detail::path_for_people(*config_, path_);
        show_->note(what);
        show_->note(fmt::format(
            "{}{}{}{} worker{}: {}", start.strategy, comm != nullptr ? " over " + comm->name() : "",
            start.strategy.empty() && comm == nullptr ? "" : ", ", ctx_->world_size(),
            ctx_->world_size() == 1 ? "" : "s", places_text(places_)));
    }
}

/// What runs where, and what is not as it was asked for.
SKEIN_INLINE void reporter::greet(const start_info& start, bool end_due) {
    const auto name = name_.empty() ? config_->name : name_;
    tell_start(start, name);
    if (dir_)
        for (const auto& text : dir_->notices())
            show_->notice(detail::text_for_people(*config_, text));
    if (!start.resumed_from.empty()) {
        show_->note(fmt::format("resumed after step {} from {}", start.first_step,
                                detail::path_for_people(*config_, start.resumed_from)));
        if (!changed_.empty()) show_->notice("the run goes on with other settings: " + changed_);
    } else if (config_->resume == resume_mode::latest && ctx_->attempt() == 0) {
        show_->notice(fmt::format("nothing to resume in {}: starting at step 0",
                                  path_.empty() ? config_->runs_dir + "/" + name
                                                : detail::path_for_people(*config_, path_)));
    }
    if (end_due)
        return show_->notice(
            fmt::format("the evaluation of step {} had failed: it is made now", start.first_step));
    if (start.first_step > 0 && start.total_steps > 0 && start.first_step >= start.total_steps) {
        const auto flag = steps_flag_of(*config_);
        show_->notice(
            fmt::format("nothing left to train: step {} of {}; give more {}{}", start.first_step,
                        start.total_steps, config_->epochs > 0 ? "epochs" : "steps",
                        config_->command.empty() || flag.empty() ? "" : " (" + flag + ")"));
    }
}

SKEIN_INLINE void reporter::draw() {
    if (!dir_ || !config_->write_files) return;
    attempt([&] { dir_->write_svg({"loss", "val_loss"}, name_); }, curve_failing_, "loss.svg");
}

} // namespace skein::train
