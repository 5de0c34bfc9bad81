// SPDX-License-Identifier: Apache-2.0
#pragma once
// Elastic<Strategy>: a training that goes on while ranks are lost, leave and join.
//
//     config.scaling.workers = {1, 4};
//     return skein::train::launch(config, [&](skein::train::context& ctx) {
//         skein::Trainer<skein::Elastic<skein::DDP<>>> trainer(ctx, config);
//         auto result = trainer.fit(model, skein::AdamW{}, schedule, loss, data, held_out);
//     });
//
// Each rank begins alone (context::world_size() is 1 until fit() or the first step of a loop), and
// the session brings it into one world after the other; fit() and the range of session.steps() see
// a step again that a loss has broken. What lasts of a step is there once or not at all: a lost
// rank costs the step that was under way, never one that was applied. See docs/elastic.md.

#include <skein/spmd/program_kind.hpp>
#include <skein/train/strategy.hpp>

#include <concepts>

namespace skein {

/// The strategy, of ranks that may change. In a job whose ranks stay it is the strategy itself.
template <class Strategy>
    requires train::strategy<Strategy>
class Elastic : public Strategy {
    static_assert(
        requires { requires Strategy::ranks_may_change; },
        "skein: not supported: Elastic<> of a strategy that cuts parameters or states "
        "into parts: those of a lost rank are lost; use Elastic<DDP<>>, or the strategy "
        "alone, which restarts from its last checkpoint");

public:
    static constexpr bool is_elastic = true;
    using Strategy::Strategy;
};

namespace train::detail {
template <class Strategy>
inline constexpr bool is_elastic = false;
template <class Strategy>
    requires requires { requires Strategy::is_elastic; }
inline constexpr bool is_elastic<Strategy> = true;

/// Using it says before main that the program has a Trainer of this strategy.
template <class Strategy>
struct elastic_mark {
    static inline const bool noted = spmd::note_elastic_program(spmd::elastic_mark);
};
} // namespace train::detail

} // namespace skein
