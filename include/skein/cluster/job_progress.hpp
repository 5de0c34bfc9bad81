// SPDX-License-Identifier: Apache-2.0
#pragma once
// How far the training of a job has come, by the table of numbers that it writes (metrics.csv).
//
//     const auto now = cluster::progress_of(text);     // of "step,loss\n10,0.5\n20,0.4\n": step 20

#include <skein/core/config.hpp>

#include <optional>
#include <string_view>

namespace skein::cluster {

/// The last value of each of these columns; nothing: the table does not say it.
struct job_progress {
    std::optional<double> step, epoch;   ///< step
    std::optional<double> steps;         ///< steps, total_steps, max_steps: how many there will be
    std::optional<double> loss;          ///< loss, train_loss
    std::optional<double> learning_rate; ///< lr, learning_rate
    std::optional<double> samples_per_s, tokens_per_s;
    std::optional<double> steps_per_s; ///< steps_per_s; 1 / step_s, step_seconds
    std::optional<double> ranks;       ///< world_size, workers, ranks
};

/// Of the text of a table: a line of names, and lines of values. Looks at its last lines alone, so
/// that a long table costs no more than a short one. Values that are no finite numbers are none.
[[nodiscard]] job_progress progress_of(std::string_view table);

/// Seconds until the last step, if the table says how many there are; a job that stands still has
/// none.
[[nodiscard]] std::optional<double> time_left(const job_progress& now);

} // namespace skein::cluster

#if SKEIN_HEADER_ONLY
#include <skein/cluster/detail/job_progress.ipp>
#endif
