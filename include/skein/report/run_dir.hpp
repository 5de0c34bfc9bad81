// SPDX-License-Identifier: Apache-2.0
#pragma once
// The folder of one run, and the files a person opens: curves, logs, configuration.
//
//     runs/gpt/config.json  metrics.csv metrics.jsonl events.out.tfevents.* loss.svg checkpoints/
//              progress.json
//
// With rules there is events.jsonl, too: what they decided.
//
// Rows are appended once per report and never rewritten, but for the last one, which a rank that
// takes over writes again. A resumed run first cuts all rows after the step it resumes from, so that
// an interrupted run leaves the very same rows as an undisturbed one. The folder is locked for the
// life of the object (.lock), so that no two runs write into it. It has to belong to who runs the
// program (or to root), and links in the place of its files are not followed. A few descriptors are
// kept back for it: rows are written also when others have taken all the rest.
//
//     auto run = run_dir::create("runs", "gpt", {.resume = false});
//     run.write_config(config);
//     run.append({.step = 10, .values = {{"loss", 2.31}}, .timings = {{"tokens_per_s", 5200}}});

#include <skein/core/descriptor_reserve.hpp>
#include <skein/core/disk.hpp>
#include <skein/core/error.hpp>
#include <skein/core/fork_guard.hpp>
#include <skein/core/result.hpp>
#include <skein/core/time.hpp>
#include <skein/report/cost.hpp>
#include <skein/report/event_file.hpp>
#include <skein/report/metrics.hpp>
#include <skein/report/svg.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace skein::report {

/// One report. `values` are reproducible numbers and go into every file; `timings` depend on the
/// machine and go into metrics.jsonl and the event file only, so that metrics.csv of two equal runs
/// is equal byte for byte.
struct metrics_row {
    std::uint64_t step = 0;
    std::vector<metric_value> values{};
    std::vector<metric_value> timings{};
    std::vector<metric_array> arrays{}; ///< reproducible; into metrics.jsonl only
    /// What the run has cost so far, and its workers; into metrics.jsonl only.
    std::optional<run_spending> spent{};
    std::uint64_t workers = 0;
};

/// One column of metrics.csv: its points in order, x is the step.
struct metrics_column {
    std::string name;
    std::vector<curve_point> points;
};

/// The columns of the metrics.csv in a run's folder; empty without one. Takes no lock and changes
/// nothing there: a run that is at work may be read.
///   errors  permission_denied, io; malformed: another file of that name
[[nodiscard]] std::vector<metrics_column> read_metrics(const std::string& folder);

/// How a run's folder is opened.
struct run_dir_options {
    bool resume = false; ///< go on in an existing folder; else a taken name gets ".2", ".3", ...
    /// How long a folder to resume may be in use: a run that was just killed needs a moment to end.
    time_span patience = std::chrono::milliseconds(2000);
    /// The job whose own folder this is, as its config.json says; empty: not known. A process that
    /// holds the lock for longer than `patience` is then one that the job goes on without (it stands
    /// still, or its host is cut off): the folder is taken from it, and it writes nothing there any
    /// more.
    std::string job{};
    /// Seconds since 1970 for event files; default: the system's clock. For tests.
    double (*wall_time)() = nullptr;
};

/// Owned by rank 0 alone; one thread.
class run_dir {
public:
    /// Creates (or, with resume, opens) <root>/<name> and locks it. Throws permission_denied,
    /// not_found, disk_full or io with the path and what to do; permission_denied also for a folder
    /// of another owner to resume; errc::usage for a name that is not one folder, and when another
    /// process is at work in the folder to resume.
    [[nodiscard]] static run_dir create(const std::string& root, const std::string& name,
                                        run_dir_options options = {});

    /// The "job_id" of the config.json in a run's folder; empty without one. Changes nothing there.
    [[nodiscard]] static std::string written_by(const std::string& path);

    run_dir(run_dir&&) noexcept;
    run_dir& operator=(run_dir&&) noexcept;
    ~run_dir();

    [[nodiscard]] const std::string& path() const noexcept { return path_; }
    /// The name in use, with its number when the one asked for was taken.
    [[nodiscard]] const std::string& name() const noexcept { return name_; }
    /// What a person should know about the folder: that the name was taken, that locks do not work.
    [[nodiscard]] const std::vector<std::string>& notices() const noexcept { return notices_; }
    [[nodiscard]] std::string checkpoints() const { return path_ + "/checkpoints"; }
    [[nodiscard]] std::string file(std::string_view base) const {
        return path_ + "/" + std::string(base);
    }

    /// Drops every row and event after `step`; call once after the checkpoint of `step` was loaded.
    void truncate_after(std::uint64_t step);
    /// The rows and events after `step` are written again: those that are there stay until the first
    /// new one of their file takes their place, at once. So a process that ends before it writes
    /// leaves none missing; of the event file it may leave one.
    void rewrite_after(std::uint64_t step);
    /// Drops all rows and events: a run that was interrupted before its first checkpoint starts
    /// over.
    void clear();

    /// Appends to metrics.csv, metrics.jsonl and the event file; written out before it returns (not
    /// synced). A new name in `values` rewrites metrics.csv once with one more column. A row that
    /// cannot be written is kept and tried again with the next one; then this throws why.
    void append(const metrics_row& row);
    /// Appends a line to events.jsonl: the text of a JSON object with a member "step", by which
    /// truncate_after() cuts. Kept and tried again like a row.
    void append_event(std::string_view object);
    /// Tries rows that wait again; throws why they still do.
    void flush();
    /// Rows that at least one file lacks.
    [[nodiscard]] std::size_t waiting() const noexcept;

    /// config.json, replaced durably: the text of one JSON object.
    void write_config(std::string_view config);
    /// Its text, or nothing without one; errc::malformed when it is not JSON.
    [[nodiscard]] std::optional<std::string> read_config() const;
    /// progress.json: how far the run has come, for pages that show it while it is at work; the text
    /// of a JSON object. Not synced. What cannot be written is left: rows say so.
    void write_progress(std::string_view object);
    /// Takes a result.json away: the run that ended so goes on.
    void remove_result();

    /// The points of one column of metrics.csv, in order.
    [[nodiscard]] std::vector<curve_point> curve(std::string_view column) const;
    /// loss.svg of the columns that are there, e.g. {"loss", "val_loss"}.
    void write_svg(const std::vector<std::string>& columns = {"loss", "val_loss"},
                   std::string_view title = {});
    /// world.svg: how many workers trained at each step, by the changes in events.jsonl.
    ///   last  the step up to which the newest number is drawn
    void write_world_svg(std::uint64_t last, std::string_view title = {});

private:
    /// A file of JSON objects, a line each.
    struct line_file {
        const char* base;
        std::uint64_t bytes = 0;                 ///< up to the last whole line
        std::optional<std::uint64_t> rewrites{}; ///< see rewrite_after()
        std::vector<std::string> waits{};        ///< that could not be written
    };

    run_dir();
    template <class Keep>
    void cut(Keep keep);
    template <class Keep>
    void drop_waiting(Keep keep);
    [[nodiscard]] error unusable(const error& why) const;
    [[nodiscard]] bool claim(bool wanted);
    [[nodiscard]] bool take_from_its_job();
    void hold(std::unique_ptr<skein::file> lock);
    [[nodiscard]] result<void> check_ours() const;
    void open_files();
    [[nodiscard]] result<void> write_header();
    [[nodiscard]] result<void> write_csv();
    [[nodiscard]] result<void> write_lines(line_file& to);
    [[nodiscard]] result<void> write_events();
    [[nodiscard]] result<void> write_waiting();

    std::string path_, name_;
    std::vector<std::string> notices_;
    std::unique_ptr<skein::file> lock_;
    fork_guard unshared_; // of the lock, which a child of this process would keep
    descriptor_reserve reserve_;
    run_dir_options options_;
    std::vector<std::string> columns_; // of metrics.csv, without "step"
    std::unique_ptr<event_file> events_;
    std::uint64_t csv_bytes_ = 0; // up to the last whole row
    // The step after which the next row takes the place of all that are there.
    std::optional<std::uint64_t> csv_rewrites_, events_rewrite_;
    bool header_waits_ = false;
    std::vector<metrics_row> csv_waits_;
    line_file lines_{.base = "metrics.jsonl"}, decisions_{.base = "events.jsonl"};
    std::vector<tb_event> events_wait_;
};

} // namespace skein::report

#if SKEIN_HEADER_ONLY
#include <skein/report/detail/run_dir.ipp>
#endif
