// SPDX-License-Identifier: Apache-2.0
#pragma once
// How far the training of a job has come, by the table of numbers that it writes (metrics.csv).
//
//     const auto now = cluster::progress_of(text);     // of "step,loss\n10,0.5\n20,0.4\n": step 20

#include <skein/core/config.hpp>

#include <optional>
#include <string>
#include <string_view>

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
