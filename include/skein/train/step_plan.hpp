// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a step is made of, as it may change while a run goes on: samples, micro-batches, the rate and
// the clip.
//
// A run begins with the plan of its run_config. A callback that returns another one (a rule:
// train/reduce_on_plateau.hpp, train/batch_growth.hpp) changes it for the steps that follow, on all
// ranks alike: what it sees are merged numbers. The plan in force goes into checkpoints.
//
//     skein::train::decision on_eval(const skein::train::eval_info& e) {
//         auto next = *e.plan;
//         next.rate_factor *= 0.5;
//         return {.plan = next, .why = "half the rate after every evaluation"};
//     }

#include <skein/core/error.hpp>
#include <skein/core/fnv.hpp>
#include <skein/train/run_config.hpp>

#include <bit>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>

#include <fmt/core.h>

namespace skein::train {

/// What the next steps are made of; alike on all ranks.
struct step_plan {
    std::int64_t global_batch = 1;  ///< samples, over all ranks and micro-batches
    std::int64_t micro_batches = 1; ///< of each rank
    double rate_factor = 1.0;       ///< on what the schedule gives
    double clip = 1.0;              ///< maximum gradient norm; 0 turns clipping off

    friend bool operator==(const step_plan&, const step_plan&) = default;
};

/// The plan that a run begins with.
[[nodiscard]] inline step_plan plan_of(const run_config& config) noexcept {
    return {config.global_batch, config.accumulation, 1.0, config.clip};
}

/// "64 samples in 2 micro-batches per rank, rate x 0.1, clip 1".
[[nodiscard]] inline std::string to_string(const step_plan& plan) {
    return fmt::format("{} samples in {} micro-batch{} per rank, rate x {}, clip {}",
                       plan.global_batch, plan.micro_batches, plan.micro_batches == 1 ? "" : "es",
                       plan.rate_factor, plan.clip);
}

/// The same number for equal plans, on every host.
[[nodiscard]] inline std::uint64_t hash_of(const step_plan& plan) noexcept {
    fnv1a hash;
    hash.number(static_cast<std::uint64_t>(plan.global_batch));
    hash.number(static_cast<std::uint64_t>(plan.micro_batches));
    hash.number(std::bit_cast<std::uint64_t>(plan.rate_factor));
    hash.number(std::bit_cast<std::uint64_t>(plan.clip));
    return hash.value();
}

/// What a plan has to fit into.
struct plan_limits {
    int world_size = 1;
    std::uint64_t samples = 0; ///< of the data set; 0: of a stream, not known
    int shards = 0;            ///< that every global batch has; 0: none
};

/// Throws errc::usage for a plan that nobody can hold, with the number and what to do.
///   rule  who asks for it, for the message
///   step  after which it was asked for
inline void check_plan(const step_plan& plan, const plan_limits& limits, std::string_view rule,
                       std::uint64_t step) {
    const auto refuse = [&](const std::string& what, const std::string& hint) {
        throw error(errc::usage, fmt::format("{} asks for {} after step {}", rule, what, step))
            .with_hint(hint);
    };
    const auto parts = limits.world_size * plan.micro_batches;
    if (plan.micro_batches < 1 || plan.micro_batches > (std::int64_t{1} << 30))
        refuse(fmt::format("{} micro-batches per rank", plan.micro_batches), "use 1 or more");
    if (plan.global_batch < 1)
        refuse(fmt::format("a global batch of {} samples", plan.global_batch),
               "give the rule a smaller change, or a least batch");
    if (plan.global_batch < parts)
        refuse(fmt::format("a global batch of {} samples, which cannot feed {} ranks with {} "
                           "micro-batches each",
                           plan.global_batch, limits.world_size, plan.micro_batches),
               fmt::format("ask for at least {}, or use fewer workers", parts));
    if (limits.shards > 0 && plan.micro_batches != 1)
        refuse(
            fmt::format("{} micro-batches per rank in a run with {} logical shards, each of which "
                        "is one",
                        plan.micro_batches, limits.shards),
            "let the rule change the batch alone");
    if (limits.shards > 0 && plan.global_batch < limits.shards)
        refuse(fmt::format("a global batch of {} samples for {} logical shards", plan.global_batch,
                           limits.shards),
               "give the rule a least batch, or the run fewer shards");
    if (limits.samples > 0 && static_cast<std::uint64_t>(plan.global_batch) > limits.samples)
        refuse(fmt::format("a global batch of {} samples, the data set has {}", plan.global_batch,
                           limits.samples),
               fmt::format("give the rule a max of at most {}", limits.samples));
    if (!(plan.rate_factor >= 0) || !std::isfinite(plan.rate_factor))
        refuse(fmt::format("a rate factor of {}", plan.rate_factor),
               "a factor is a finite number that is not negative");
    if (!(plan.clip >= 0) || !std::isfinite(plan.clip))
        refuse(fmt::format("a clip of {}", plan.clip), "use 0 (off) or a positive norm");
}

} // namespace skein::train
