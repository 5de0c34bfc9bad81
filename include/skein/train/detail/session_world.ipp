// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a session brings from one world of its job into the next, besides tensors. Used by
// <skein/train/detail/session_core.ipp> and what it includes alone.

#include <skein/core/bytes.hpp>
#include <skein/core/error.hpp>
#include <skein/goodput/gradient_noise.hpp>
#include <skein/report/metrics.hpp>
#include <skein/spmd/elastic_world.hpp>
#include <skein/torch/torch.hpp>
#include <skein/train/collective.hpp>
#include <skein/train/context.hpp>
#include <skein/train/detail/world_word.hpp>
#include <skein/train/reporter.hpp>
#include <skein/train/step_plan.hpp>
#include <skein/wire/decode.hpp>
#include <skein/wire/encode.hpp>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace skein::train::detail {

/// The last row of a run: also a rank that has not written it may have to.
struct last_row {
    std::uint64_t step = 0;
    double loss = 0.0, lr = 0.0, grad_norm = 0.0, seconds = 0.0, tokens_per_s = 0.0;
    std::uint64_t batch = 0; ///< samples of the step
    std::int64_t micro_batches = 1;
    std::vector<report::metric_value> values{}, evaluated{};
    std::vector<report::metric_array> arrays{}, evaluated_arrays{};
    std::vector<run_event> decided{};
    std::vector<std::string> worlds{};                ///< rows of events.jsonl behind it
    std::vector<double> word{};                       ///< of callbacks on rank 0
    std::vector<goodput::gradient_squares> squares{}; ///< for whoever is told the step here
    bool squares_are_differenced = false;
};

/// From a rank that has state to those that have not.
struct carried_state {
    std::string extra; ///< as a checkpoint has it
    std::string run_name, run_path;
    std::uint64_t step = 0, epoch = 0;
    step_end end = step_end::nothing;
    bool ends_epoch = false; ///< the step that was applied last
    bool stopped = false, hurries = false;
    std::int32_t stop_signal = 0;
    std::string stop_reason;
    double loss = 0.0, val_loss = 0.0, scheduled = 0.0;
    bool left_out = false;
    step_plan plan{}; ///< in force
    std::uint64_t val_step = 0, first_step = 0, told_step = 0;
    std::vector<report::metric_value> late; ///< of an epoch of metrics whose end came late
    std::vector<report::metric_array> late_arrays;
    std::string checkpoint; ///< the newest
    bool save_due = false;  ///< behind the step, because one before it was given up
    std::vector<report::metric_value> metrics;
    std::vector<report::metric_array> arrays;
    std::vector<std::uint64_t> evaluated_at, told_at;
    std::map<std::string, double> newest;
    last_row row;
};

/// What the words of all ranks come to; collective.
[[nodiscard]] SKEIN_INLINE world_plan agree_on_state(const context& ctx, const world_word& mine) {
    std::vector<world_word> all;
    for (const auto& bytes : gather_bytes(ctx, wire::encode(mine)))
        all.push_back(wire::decode<world_word>(bytes).value());
    auto plan = plan_world(all);
    if (!plan.refused) return plan;
    if (*plan.refused == static_cast<std::size_t>(ctx.rank()))
        throw error(errc::mismatch, plan.why)
            .with_hint("a worker that joins runs the same program with the same options");
    throw error(errc::peer_lost, "a rank was refused: " + plan.why); // it leaves, and a world comes
}

/// The first giver's on every rank; collective.
[[nodiscard]] SKEIN_INLINE carried_state spread(const context& ctx, const carried_state& mine,
                                                const world_plan& plan) {
    const bool gives = ctx.rank() == plan.first;
    const auto bytes = gives ? wire::encode(mine) : byte_buffer{};
    const auto all = gather_bytes(ctx, bytes);
    return wire::decode<carried_state>(all[static_cast<std::size_t>(plan.first)]).value();
}

} // namespace skein::train::detail
