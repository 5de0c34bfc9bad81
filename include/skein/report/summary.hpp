// SPDX-License-Identifier: Apache-2.0
#pragma once
// The last screen of a run: what came out, where it is, and what to type next.
//
//     std::string text = summary_text({.name = "gpt", .path = "runs/gpt", .steps = 2000, ...});

#include <skein/report/metrics.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace skein::report {

/// What the last screen is made of.
struct run_summary {
    std::string name{};      ///< in use
    std::string asked{};     ///< the name that was asked for, when it was taken; or empty
    std::string path{};      ///< "runs/gpt"
    std::uint64_t steps = 0; ///< finished
    std::uint64_t total = 0; ///< asked for
    std::uint64_t first = 0; ///< where this start of the program began
    double seconds = 0.0;    ///< of this start
    std::optional<double> tokens_per_s{};
    bool samples = false;                   ///< tokens_per_s counts samples
    std::optional<double> peak_rss_bytes{}; ///< largest of the ranks
    int workers = 1;
    int restarts = 0;                    ///< from a checkpoint
    int changes = 0;                     ///< of the workers, behind which the run went on
    std::vector<metric_value> results{}; ///< e.g. {"loss", 1.83}, {"val_loss", 1.91}
    std::uint64_t val_step = 0;          ///< the step of "val_loss"; 0: the last one
    std::string checkpoint{};            ///< the newest, or empty
    std::string command{};               ///< how the program was called; empty: no resume line
    std::uint64_t epochs = 0;            ///< that were asked for; 0: steps were
    /// What goes on, and what gives the steps, or epochs; empty when the program has no such flags.
    std::string resume_flag = "--resume", steps_flag = "--steps", name_flag = "--run";
    std::string launcher{}; ///< what started the ranks, or empty: the program itself
    std::string stopped{};  ///< "by SIGINT": why it ended early, or empty
    /// Only for summary_json(): members of the program's own, at its end.
    std::vector<std::pair<std::string, std::string>> texts{};
};

/// A word as one types it into a shell: in quotes when it needs them.
[[nodiscard]] std::string shell_word(std::string_view word);
/// The command that goes on with a run: with the resume flag, with the name in use when it is
/// another than the one asked for, and when it is complete with twice the steps, or epochs.
[[nodiscard]] std::string next_command(const run_summary& run);
/// The screen, lines ending with '\n'.
[[nodiscard]] std::string summary_text(const run_summary& run);
/// The same as the text of one JSON object {"event": "summary", ...}.
[[nodiscard]] std::string summary_json(const run_summary& run);

} // namespace skein::report

#if SKEIN_HEADER_ONLY
#include <skein/report/detail/summary.ipp>
#endif
