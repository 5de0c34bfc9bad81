// SPDX-License-Identifier: Apache-2.0
#pragma once
// Where a run is: what its steps (session_core.ipp) and what lies between them (session_between.ipp)
// both work on.

#include <skein/torch/torch.hpp>
#include <skein/train/detail/epoch_sums.hpp>
#include <skein/train/detail/feeder.ipp>
#include <skein/train/detail/session_evaluation.ipp>
#include <skein/train/detail/session_look.ipp>
#include <skein/train/detail/session_parts.ipp>
#include <skein/train/detail/session_plan.ipp>
#include <skein/train/loss_scale.hpp>
#include <skein/train/run_result.hpp>

#include <bit>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace skein::train::detail {

/// What a step and what lies between two of them both work on. The session owns it.
struct run_state {
    const context& ctx;
    const run_config& config;
    schedule rate;
    step_plan plan;  ///< in force: what was asked for, as far as the world holds it
    step_plan asked; ///< asked for in steps
    const metrics_manager& declared;
    std::unique_ptr<session_parts> parts{};
    std::unique_ptr<input_source> input{};
    std::optional<flat_optimizer> optimizer{};
    std::optional<step_look> look{}; ///< when a callback looks at gradients
    std::optional<feeder> feeder{};
    std::optional<loss_scale> scale{}; ///< in float16
    std::optional<training_stage> training{};
    epoch_sums sums{};          ///< of the steps that are committed
    double factor = 1.0;        ///< of callbacks, on the rate of the step that was agreed on last
    stage_numbers row{};        ///< of the step that was committed last
    std::vector<double> word{}; ///< that rank 0 has given with it
    std::uint64_t total = 0;    ///< steps of the run; 0: not known
    std::uint64_t step = 0;     ///< finished
    std::uint64_t epoch = 0;    ///< of the step that was committed last
    bool left_out = false;      ///< the step that was applied last, by a callback
    bool stopped = false, stop_wanted = false, ended = false;
    std::string stop_reason{}; ///< a callback's of this rank
    std::optional<drawn_batch> upcoming{};
    double scheduled = 0.0; ///< rate of the step that was agreed on last, by the schedule alone
    fit_result result{};

    bool hurries =
        false; ///< who stops it does not wait: nothing is done that a resumed run does again
    /// The run ends behind this step, as planned or because a callback wants it.
    [[nodiscard]] bool comes_to_end() const noexcept { return !hurries && (stopped || is_last()); }
    [[nodiscard]] bool is_last() const noexcept { return total > 0 ? step == total : ended; }
    /// What the schedule gives for the step after so many finished ones.
    [[nodiscard]] double scheduled_rate(std::uint64_t finished) const {
        return learning_rate(rate, feeder->schedule_step(finished));
    }
    /// From the next step on. Collective with a stream whose end is not known.
    void follow(const step_plan& next) {
        plan = next;
        if (!feeder->follow(next, step)) return;
        total = feeder->total();
        if (!upcoming) return;
        upcoming = feeder->next(step);
        ended = !upcoming;
    }
    /// What this rank has decided since the row before, as a number that float64 holds.
    [[nodiscard]] double decided() const noexcept {
        const auto applied = factor == 1.0 ? 0 : std::bit_cast<std::uint64_t>(factor);
        const auto hash = hash_of(plan) ^ (left_out ? 1 : 0) ^ applied;
        return static_cast<double>(hash >> 12 ^ (hash & 0xfff));
    }
    void ask_stop(action wanted) {
        if (wanted != action::stop) return;
        stop_wanted = true;
        if (parts && stop_reason.empty()) stop_reason = parts->stop_reason();
    }
};

/// Collective, once it is known that they differ: says which rank has which plan.
[[noreturn]] SKEIN_INLINE void plans_differ(const context& ctx, const run_state& run,
                                            std::uint64_t step) {
    auto text = to_string(run.plan);
    if (run.factor != 1.0) text += fmt::format(", rate of the step x {}", run.factor);
    if (run.left_out) text += ", the step before left out";
    plans_differ(ctx, text, step);
}

/// What a checkpoint is chosen by: this step's numbers; where the newest count, older ones, too.
[[nodiscard]] SKEIN_INLINE std::map<std::string, double> chosen_by(
    const run_state& run, const std::vector<metric_value>& evaluated,
    const std::map<std::string, double>& newest) {
    std::map<std::string, double> all;
    all["loss"] = run.result.loss;
    for (const auto& m : evaluated) all[m.name] = m.value;
    for (const auto& m : run.row.values)
        if (m.name.starts_with("train_")) all[m.name] = m.value;
    const auto& best = run.config.checkpoint.keep_best;
    const bool any_step = best.value == best_value::newest || best.metric.starts_with("train_");
    const auto older = newest.find(best.metric);
    if (any_step && older != newest.end()) all.emplace(*older);
    return all;
}

} // namespace skein::train::detail
