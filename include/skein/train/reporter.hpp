// SPDX-License-Identifier: Apache-2.0
#pragma once
// Rank 0's voice and pen: the run's folder, its metric files, the progress line. Silent elsewhere.
//
// Every rank owns one and calls it alike; only rank 0 opens files and prints. The folder's path is
// shared at construction, so that all ranks put their checkpoint shards into the same place.

#include <skein/core/bytes.hpp>
#include <skein/report/cost.hpp>
#include <skein/report/metrics.hpp>
#include <skein/report/progress.hpp>
#include <skein/report/run_dir.hpp>
#include <skein/report/settings.hpp>
#include <skein/report/summary.hpp>
#include <skein/spmd/elastic_world.hpp>
#include <skein/train/callbacks.hpp>
#include <skein/train/context.hpp>
#include <skein/train/run_config.hpp>

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace skein::train {

/// Tells the attempts of one job from those of others: the launcher's job id; without one
/// (torchrun's default id is "none" for every job) the launcher's process, which lives as long as
/// the job. Rank 0.
[[nodiscard]] std::string job_of(const context& ctx);

/// The folder of this run: with resume the one of that name; after a restart the one this job made
/// (its number may differ from the name asked for); else a new one. Rank 0 only.
[[nodiscard]] report::run_dir open_run_dir(const context& ctx, const run_config& config);

/// "pid 101 102", or by host when there are several: "pid 101 102 on a, 7 on b". One text
/// "<pid> <host>" per rank; after the first 16 only dots.
[[nodiscard]] std::string places_text(const std::vector<byte_buffer>& ranks);

/// "text: "a.txt" -> "b.txt", heads: 2 -> 4" against the config.json that is there; empty when
/// nothing differs or nothing can be read.
[[nodiscard]] std::string changed_settings(const report::run_dir& dir, const report::settings& now);
/// The same for what steers the run in its run_config: batch, accumulation, clip, precision, what
/// is evaluated and what is the best. How long it is, where it runs and what it keeps may change
/// without a word.
[[nodiscard]] std::string changed_config(const report::run_dir& dir, const run_config& now);

/// One change that a rule decided: a line for people and a row of events.jsonl.
struct run_event {
    std::uint64_t step = 0; ///< behind which it was decided
    std::string rule{};     ///< who
    std::string what{}; ///< "global_batch", "micro_batches", "rate_factor", "clip", "step", "run"
    std::string from{}, to{}; ///< JSON: a number, or a word in quotes
    std::string why{};
};

/// Another world: who its ranks are, and what the change took.
struct world_news {
    spmd::world_change change;
    int before = 0;          ///< ranks of the world before; 0: there was none
    double stall = 0.0;      ///< seconds from the last step to the first that this world can make
    std::uint64_t bytes = 0; ///< of state that ranks took from others
};

namespace detail {
/// Parts of a whole in whole percent, and the rest: they add up to 100.
[[nodiscard]] std::array<int, 6> whole_shares(const std::array<double, 5>& parts, double whole);
} // namespace detail

/// See the file's head. Not thread-safe. Until begin() nothing of a run that is there already is
/// changed.
class reporter {
public:
    /// Collective. settings: the user's part of config.json.
    reporter(const context& ctx, const run_config& config, const report::settings& settings);
    /// Of a rank that joins a run, which has this folder; its first rebind() follows.
    reporter(const context& ctx, const run_config& config, std::string name, std::string path);
    ~reporter();
    reporter(const reporter&) = delete;
    reporter& operator=(const reporter&) = delete;

    [[nodiscard]] const std::string& path() const noexcept { return path_; }
    [[nodiscard]] const std::string& name() const noexcept { return name_; }
    [[nodiscard]] std::string checkpoints() const { return path_ + "/checkpoints"; }

    /// Once, when it is known where the run begins. Rows after the first step are dropped.
    ///   end_due  the row of the first step, too: what lies behind it is made now
    void begin(const start_info& start, bool end_due = false);

    /// One step's row; `evaluated` holds this step's evaluation, or nothing. A file that cannot be
    /// written is told once and tried again: training goes on.
    void step(const step_info& now, const std::vector<report::metric_value>& evaluated,
              const std::vector<report::metric_array>& arrays = {});

    /// What a rule decided, behind the row of its step.
    void decided(const run_event& event);

    /// The context is in another generation of its world, whose first rank goes on with the run's
    /// files. Collective; when it has returned nothing of it is to be done again.
    ///   rewrites  the row of the last step is written again
    ///   why       the world changed; empty: nobody said
    void rebind(const start_info& start, bool rewrites, const std::string& why);
    /// That the ranks of the world are on: as many on every rank.
    [[nodiscard]] int hosts() const;
    /// This rank is the first of the new world and was not of the one before.
    [[nodiscard]] bool takes_over() const noexcept;
    /// A change of the world, behind the row of the step: a row of events.jsonl, which it gives.
    std::string changed(std::uint64_t step, const world_news& news);
    /// Such a row once more, because a file may lack it.
    void add_event(const std::string& row);

    /// The run has so many steps now; 0: not known.
    void set_total(std::uint64_t steps);
    void saved(const checkpoint_info& checkpoint);
    void note(const std::string& text);
    /// What is not as it was asked for word by word.
    void notice(const std::string& text);
    void finish(const fit_result& result);

private:
    void learn_workers();
    void resume_costs();
    void keep_rows(std::uint64_t step, bool rewrites);
    void tell(bool at_once, const fit_result* over = nullptr);
    void show(const start_info& start);
    void greet(const start_info& start, bool end_due);
    void tell_start(const start_info& start, const std::string& name);
    void write_row(const step_info& now, const std::vector<report::metric_value>& evaluated,
                   const std::vector<report::metric_array>& arrays);
    void say_evaluation(std::uint64_t step, const std::vector<report::metric_value>& evaluated);
    void say_times();
    void draw();
    void draw_world(std::uint64_t step);
    template <class Write>
    void attempt(Write write, bool& failing, std::string_view what);

    const context* ctx_;
    const run_config* config_;
    bool first_;                      ///< it writes and speaks
    std::vector<byte_buffer> places_; // "<pid> <host>" of every rank
    report::worker_count workers_;    // those ranks
    report::worker_meter meter_;      // since the run began; of a rank that only may take over,
                                      // since its last row
    std::string path_, name_;         // the path is absolute: main() may go to another folder
    std::string changed_;     // the user's settings that differ from those the run had before
    std::string config_text_; // config.json, until it is known that the run goes on
    bool rows_failing_ = false, curve_failing_ = false, events_failing_ = false;
    std::optional<report::run_dir> dir_;
    std::unique_ptr<report::progress> show_;
    std::uint64_t last_step_ = 0;
    std::uint64_t total_ = 0, epoch_ = 0; // of progress.json: steps there will be, passes finished
    double pace_ = 0.0;                   // of it: tokens or samples a second
    time_point told_at_{};
    double average_ = 0.0;          // of the seconds per step, exponential
    double between_rows_ = 0.0;     // seconds from row to row, likewise
    double waited_ = 0.0;           // of those that waited for data
    double seconds_ = 0.0;          // from the first step to the last row
    std::array<double, 5> spent_{}; // of them: data, forward, backward, optimizer, other ranks
};

/// Rank 0's last screen of a fit() that ended: printed when the context ends, in the way of
/// config.output (text to stderr as all that the trainer says, JSON to stdout, nothing when quiet).
/// Tells the context how the run ended, and writes its result.json (run_result.hpp).
void leave_screen(const context& ctx, const run_config& config, const fit_result& result);

/// The last screen for a finished fit(), for a program that prints its own: add to `results` before
/// summary_text(). The one that fit() has left is not printed then.
[[nodiscard]] report::run_summary summarize(const context& ctx, const run_config& config,
                                            const fit_result& result);

} // namespace skein::train

#if SKEIN_HEADER_ONLY
#include <skein/train/detail/reporter.ipp>
#include <skein/train/detail/reporter_screen.ipp>
#endif
