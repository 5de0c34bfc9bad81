// SPDX-License-Identifier: Apache-2.0
#pragma once
// How a run ended, for the program that asked for it and for those that come later.
//
//     auto result = skein::train::run<&loop>(config, how);      // run_result<outcome>
//     if (!result.ok()) return complain(result.error());
//     result.value().accuracy, result.best->value, result.newest_checkpoint
//
//     auto earlier = skein::train::load_result("runs/gpt");     // finished_run, of its result.json
//     for (auto& [name, points] : earlier.history()) ...
//
// Rank 0 writes result.json into the run's folder when training ends, whole or not at all; its
// paths are relative to the folder, which may move. A run that goes on takes an older one away.

#include <skein/core/check.hpp>
#include <skein/core/error.hpp>
#include <skein/report/run_dir.hpp>
#include <skein/report/svg.hpp>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace skein::train {

class context;
struct run_note;
struct run_config;

/// One number of a run, and the step after which it was measured.
struct measured {
    std::string name{};
    double value = 0.0;
    std::uint64_t step = 0;

    friend bool operator==(const measured&, const measured&) = default;
};

/// What is known of a run that has ended. Without a fit(), or when it wrote no files, there is no
/// folder, and what is in it is not known.
struct finished_run {
    std::string name{}, path{}; ///< of its folder; empty: it wrote none
    std::uint64_t steps = 0; ///< finished, of the whole run; by its rows when its fit() did not end
    double seconds = 0.0;    ///< of the last start
    int world_size = 1;      ///< ranks
    int restarts = 0;        ///< after failures
    /// Of the job so far: starts of all its ranks; of elastic ranks the worlds they were in.
    std::uint64_t worlds = 1;
    /// Why the last of them began: "worker 1 (pid 7) was killed by signal 9 (SIGKILL)". Empty: it
    /// was the first, or the launcher does not tell.
    std::string last_change{};
    std::string stopped_by{}; ///< "SIGTERM", or what a callback says; empty: it ended as planned
    std::vector<measured> metrics{}; ///< the last value of each column of metrics.csv
    std::optional<measured> best{};  ///< of config's best metric; nothing: it was not measured
    std::string newest_checkpoint{}, best_checkpoint{}; ///< those that are there; or empty
    std::string value_json{}; ///< what the loop returned, where its fields are numbers and texts
    std::optional<skein::error> failure{};
    int failed_rank = -1; ///< whose failure it was; -1 if nobody's in particular

    [[nodiscard]] bool ok() const noexcept { return !failure; }
    [[nodiscard]] bool stopped() const noexcept { return !stopped_by.empty(); }
    /// Why it failed, with the rank: "rank 1 of 3: ...". Of a success there is none: asking for it
    /// ends the program.
    [[nodiscard]] const skein::error& error() const {
        SKEIN_CHECK(failure.has_value(), "a run that succeeded has no error");
        return *failure;
    }
    /// The last value of a metric, or nothing.
    [[nodiscard]] std::optional<double> metric(std::string_view called) const;
    /// All rows of metrics.csv by column; read from the folder now.
    ///   errors  not_found: no folder, or no such file in it (another host's, perhaps)
    [[nodiscard]] std::map<std::string, std::vector<report::curve_point>> history() const;
};

/// The same with what the loop returned.
template <class T>
class run_result : public finished_run {
public:
    explicit run_result(finished_run how, std::optional<T> value = std::nullopt)
        : finished_run(std::move(how)), value_(std::move(value)) {}

    /// Throws error() when the run failed.
    [[nodiscard]] T& value() & {
        if (!ok()) throw error();
        return *value_;
    }
    [[nodiscard]] const T& value() const& {
        if (!ok()) throw error();
        return *value_;
    }
    [[nodiscard]] T value() && {
        if (!ok()) throw error();
        return *std::move(value_);
    }

private:
    std::optional<T> value_;
};
/// Of a loop that returns nothing.
template <>
class run_result<void> : public finished_run {
public:
    explicit run_result(finished_run how) : finished_run(std::move(how)) {}

    /// Throws error() when the run failed.
    void value() const {
        if (!ok()) throw error();
    }
};

/// Reads the result.json of a run's folder, or that file.
///   errors  not_found: there is none, with what to do; malformed: cut short, no JSON, or no result
///           of a run; not_supported: another format; too_large
[[nodiscard]] finished_run load_result(const std::string& path);

namespace detail {
/// What a run's folder tells; without a folder what the note has.
[[nodiscard]] finished_run finished_of(const run_note& run);
/// How many worlds there were in the job of a rank, and why the last one began.
void note_worlds(const context& ctx, finished_run& out);
/// The checkpoint in a run's folder that is the best by the note's metric; empty: none has it.
[[nodiscard]] std::string best_checkpoint_of(const run_note& run);
/// result.json, durably; says in the log what went wrong. Without a folder it does nothing.
void write_result(const finished_run& run);
/// The bytes of the file, and back. `folder` is where it lies.
[[nodiscard]] std::string result_text(const finished_run& run);
[[nodiscard]] finished_run result_of(std::string_view text, const std::string& folder);
} // namespace detail

} // namespace skein::train

#if SKEIN_HEADER_ONLY
#include <skein/train/detail/run_result.ipp>
#endif
