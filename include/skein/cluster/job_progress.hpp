// SPDX-License-Identifier: Apache-2.0
#pragma once
// How far the training of a job has come, by the table of numbers that it writes (metrics.csv).
//
//     const auto now = cluster::progress_of(text);     // of "step,loss\n10,0.5\n20,0.4\n": step 20

#include <skein/core/config.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace skein::cluster {

/// The last value of each of these columns; nothing: the table does not say it. A loss and a
/// learning rate may be NaN or infinite: a training that has diverged says so.
struct job_progress {
    std::optional<double> step, epoch;   ///< step; epoch: passes over the data that are finished
    std::optional<double> steps;         ///< steps, total_steps, max_steps: how many there will be
    std::optional<double> epochs;        ///< epochs, total_epochs, max_epochs: likewise
    std::optional<double> loss;          ///< loss, train_loss
    std::optional<double> learning_rate; ///< lr, learning_rate
    std::optional<double> samples_per_s, tokens_per_s;
    std::optional<double> steps_per_s; ///< steps_per_s; 1 / step_s, step_seconds
    std::optional<double> ranks;       ///< world_size, workers, ranks
    std::string folder{};              ///< of its newest run, on its node
    bool is_over = false;              ///< the training has said that it has ended
    std::string stopped_by{};          ///< why before its end, in its words; empty: it came there
    /// Starts of all its ranks in this attempt; of elastic ranks the worlds they were in. 0: not said.
    std::uint32_t worlds = 0;
    std::string last_change{}; ///< why the last of them began; empty: it was the first
    std::string range{};       ///< of elastic ranks how many there may be: "1:4"
};

/// The table of numbers that a job's newest training has written, as far as it has come.
struct job_table_text {
    std::string run;           ///< the name of its folder
    std::string text;          ///< metrics.csv, whole lines
    std::uint64_t edition = 0; ///< another one: it was begun anew
};

/// An attempt of a job that has failed and was followed by another one.
struct past_attempt {
    std::uint32_t attempt = 0;
    std::string node, reason;
    std::int32_t exit_code = -1, signal = 0;
    std::int64_t started = 0, ended = 0; ///< milliseconds since 1970; 0: it did not start
};

/// A rank of a job's newest attempt.
struct rank_place {
    int rank = -1; ///< -1: not known, as under a head that was started again
    std::string node;
};

/// How far a job has come.
struct job_course {
    job_progress now;                   ///< of its newest training
    std::vector<rank_place> ranks;      ///< those that were spread over nodes, in order
    std::vector<past_attempt> attempts; ///< the newest ones that this head has seen fail, in order
};

/// Of the text of a table: a line of names, and lines of values. Looks at its last lines alone, so
/// that a long table costs no more than a short one. What is no number is none.
[[nodiscard]] job_progress progress_of(std::string_view table);

/// What a Trainer says of itself beside its table, in progress.json: what the columns do not say is
/// taken from it. A text that is not such a file adds nothing.
void add_told(job_progress& to, std::string_view told);

/// Seconds until the last step, if the table says how many there are; a job that stands still has
/// none.
[[nodiscard]] std::optional<double> time_left(const job_progress& now);

} // namespace skein::cluster

#if SKEIN_HEADER_ONLY
#include <skein/cluster/detail/job_progress.ipp>
#endif
