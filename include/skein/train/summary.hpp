// SPDX-License-Identifier: Apache-2.0
#pragma once
// The last screen of a run: what came out, where it is, and what to type next.
//
//     std::string text = summary_text({.name = "gpt", .path = "runs/gpt", .steps = 2000, ...});

#include <skein/train/json.hpp>
#include <skein/train/metrics.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace skein::train {

struct run_summary {
    std::string name;
    std::string path;        ///< "runs/gpt"
    std::uint64_t steps = 0; ///< finished
    std::uint64_t total = 0; ///< asked for
    double seconds = 0.0;
    std::optional<double> tokens_per_s;
    std::optional<double> peak_rss_bytes; ///< largest of the ranks
    int workers = 1;
    int restarts = 0;
    std::vector<metric_value> results; ///< e.g. {"loss", 1.83}, {"val_loss", 1.91}
    std::string checkpoint;            ///< the newest, or empty
    std::string command;               ///< how the program was called; empty: no resume line
    std::string resume_flag = "--resume";
    std::string stopped; ///< why it ended early, or empty
};

/// The screen, lines ending with '\n'.
[[nodiscard]] std::string summary_text(const run_summary& run);
/// The same as one JSON object {"event": "summary", ...}.
[[nodiscard]] ordered_json summary_json(const run_summary& run);

} // namespace skein::train

#include <skein/train/detail/summary.hpp>
