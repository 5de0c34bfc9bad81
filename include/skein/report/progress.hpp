// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a person sees while a run trains: one line that is rewritten on a terminal, plain lines now
// and then in a file or pipe, JSON lines for programs, or nothing.
//
//     progress show({.total = 2000, .mode = progress_mode::automatic});
//     show.update({.step = 120, .loss = 2.31, .tokens_per_s = 5200, .step_seconds = 0.19});
//     show.note("validation loss 2.28");      // a line that stays
//     show.finish();
//
//   gpt   120/2000  [###-------]   6%  loss 2.3100  5.2k tok/s  190 ms/step  ETA 05:57

#include <skein/core/config.hpp>
#include <skein/core/time.hpp>
#include <skein/core/units.hpp>

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace skein::report {

/// Who reads the progress: a person, a file, nobody, or a program.
enum class progress_mode : std::uint8_t {
    automatic, ///< terminal if the output is one, else plain
    terminal,  ///< one line, rewritten
    plain,     ///< a line every `plain_interval`
    quiet,     ///< nothing at all
    json_lines ///< one JSON object per update and note
};

/// What the reader of one line needs. Missing numbers are left out.
struct progress_update {
    std::uint64_t step = 0; ///< finished steps
    std::optional<double> loss{};
    std::optional<double> tokens_per_s{};
    std::optional<double> step_seconds{}; ///< newest average time of a step
    std::optional<double> data_share{};   ///< part of it that waited for data; from 0.5 % on shown
    std::vector<std::pair<std::string, double>>
        more{}; ///< e.g. {"lr", 6e-4}; shown if there is space
    std::vector<std::pair<std::string, double>> also{}; ///< for programs: JSON lines only
};

/// What a progress line says of its run, and how often it is written.
struct progress_options {
    std::string name{};      ///< in front of the line
    std::uint64_t total = 0; ///< steps of the whole run; 0: unknown
    bool samples = false;    ///< update.tokens_per_s counts samples: say "samples/s"
    std::uint64_t first = 0; ///< the step the run (re)started at, for the ETA
    progress_mode mode = progress_mode::automatic;
    time_span terminal_interval = std::chrono::milliseconds(100);
    time_span plain_interval = std::chrono::milliseconds(10'000);
    std::function<void(std::string_view)> write{}; ///< default: stderr, at once
    std::function<int()> columns{};                ///< width of the terminal; default: asks stderr
    std::function<double()> clock{};               ///< seconds, monotonic; default: the real one
};

/// Owned by rank 0; one thread.
class progress {
public:
    explicit progress(progress_options options);
    /// Ends the line on a terminal.
    ~progress();
    progress(const progress&) = delete;
    progress& operator=(const progress&) = delete;

    /// Shows it, unless the interval of the mode has not passed (the last step always shows; JSON
    /// lines always).
    void update(const progress_update& now);
    /// A line that stays, above the rewritten one. In JSON mode {"event": "note", "text": ...}.
    void note(std::string_view text);
    /// A note of something that is not as it was asked for word by word.
    void notice(std::string_view text) { note(text); }
    /// A note that also a quiet run shows: something failed, and the run goes on.
    void failure(std::string_view text);
    /// The text of one JSON object: a line in JSON mode, nothing in the others.
    void event(std::string_view object);
    /// The run has so many steps from here on; 0: unknown.
    void set_total(std::uint64_t steps) noexcept { options_.total = steps; }
    /// The last update is shown and the line ended. Safe to repeat.
    void finish();

    [[nodiscard]] progress_mode mode() const noexcept { return options_.mode; }
    /// The line for an update within `columns` characters; what update() shows. For tests too.
    [[nodiscard]] std::string line(const progress_update& now, int columns) const;
    /// Seconds to go, by the step time that the line shows, else by the average since `first`;
    /// nothing when unknown.
    [[nodiscard]] std::optional<double> seconds_left(const progress_update& now) const;

private:
    void show(const progress_update& now);
    void erase();

    progress_options options_;
    double started_ = 0.0;
    std::optional<double> shown_;
    std::optional<progress_update> pending_;
    bool line_open_ = false, finished_ = false;
};

// Numbers for people, as skein's own: core/units.hpp.
using skein::human_bytes;
using skein::human_clock;
using skein::human_count;
using skein::human_seconds;

} // namespace skein::report

#if SKEIN_HEADER_ONLY
#include <skein/report/detail/progress.ipp>
#endif
