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
    std::optional<detail::feeder>
        feeder{};                      // in full: g++ takes the name for the member from here on
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
    /// The rate of the step that is under way, of so many samples.
    [[nodiscard]] double applied_rate(std::uint64_t batch) {
        const auto first = static_cast<std::uint64_t>(config.global_batch);
        const auto units = feeder->units();
        scheduled = scheduled_rate(step);
        factor = parts->rate(
            {.step = step + 1,
             .batch = batch,
             .first_batch = first,
             .progress = units ? static_cast<double>(*units) / static_cast<double>(first)
                               : static_cast<double>(step),
             .plan = &plan});
        return scheduled * plan.rate_factor * factor;
    }
    /// From the next step on. Collective with a stream whose end is not known.
    ///   behind  so many steps; one that is applied and not committed is one of them
    void follow(const step_plan& next, std::uint64_t behind) {
        plan = next;
        if (!feeder->follow(next, behind)) return;
        total = feeder->total();
        if (!upcoming) return;
        upcoming = feeder->next(behind);
        ended = !upcoming;
    }
    /// A rule has asked for another plan than the one in force. What it has left as it is stays as it
    /// was asked for, also where this world had cut it.
    void ask_for(const step_plan& next) noexcept {
        if (next.global_batch != plan.global_batch) asked.global_batch = next.global_batch;
        if (next.micro_batches != plan.micro_batches) asked.micro_batches = next.micro_batches;
        if (next.rate_factor != plan.rate_factor) asked.rate_factor = next.rate_factor;
        if (next.clip != plan.clip) asked.clip = next.clip;
    }
    [[nodiscard]] plan_limits limits() const {
        return {ctx.world_size(), input->size(), config.scaling.logical_shards};
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

/// The plan of a checkpoint, when rules had changed it. Callbacks have their states.
///   result  what is to be told; mostly nothing
[[nodiscard]] SKEIN_INLINE std::string restore_plan(run_state& run, const json& extra,
                                                    const std::string& where) {
    const bool is_saved = extra.contains("plan"), by_gain = static_cast<bool>(run.parts->gain());
    if (!is_saved && !by_gain) return {};
    loaded_plan saved{run.asked, std::nullopt};
    if (is_saved) saved = restored_plan(extra.at("plan"), run.config, where);
    if (!run.parts->plans()) check_plan(saved.plan, run.limits(), "the checkpoint", run.step);
    run.plan = run.asked = saved.plan;
    run.feeder->restore_plan(saved.plan, saved.units, run.step);
    run.total = run.feeder->total();
    if (saved.plan == plan_of(run.config) && (by_gain || !is_saved)) return {};
    return "the run goes on by the plan of its rules: " + to_string(saved.plan);
}

/// The plan of the steps in this world: what rules have asked for, what they decide for it, and what
/// of that it can hold. Asks no other rank, but with a stream whose end is not known.
///   hosts   that the ranks are on, alike on all
///   behind  as for run_state::follow()
///   result  what is another one for that
[[nodiscard]] SKEIN_INLINE std::vector<run_event> enter_plan(run_state& run, int hosts,
                                                             std::uint64_t behind) {
    std::vector<run_event> rows;
    if (!run.parts->plans()) return rows;
    decisions to{.plan = run.asked};
    run.parts->tell(world_change{.rank = run.ctx.rank(),
                                 .world_size = run.ctx.world_size(),
                                 .hosts = hosts,
                                 .step = behind,
                                 .first_batch = static_cast<std::uint64_t>(run.config.global_batch),
                                 .samples = run.input->size(),
                                 .shards = run.config.scaling.logical_shards,
                                 .plan = &run.asked},
                    to);
    std::string rule = "world", why = fmt::format("{} workers", run.ctx.world_size());
    for (const auto& each : to.made) {
        rule = each.rule;
        if (!each.why.empty()) why = each.why;
    }
    const auto plan = fitted(to.plan, run.limits());
    check_plan(plan, run.limits(), rule, behind);
    add_events(rows, {rule, run.plan, plan, to.wanted == action::stop, why}, behind);
    if (plan != run.plan) run.follow(plan, behind);
    run.ask_stop(to.wanted);
    return rows;
}

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
