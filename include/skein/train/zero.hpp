// SPDX-License-Identifier: Apache-2.0
#pragma once
// ZeRO stages 1 and 2: data parallel training in which every rank updates a part of the parameters.
//
// The gradients of a unit are reduced so that each rank gets the sum of its own part only; it
// updates that part and hands it to the others. On one host the parameters are one memory for all
// ranks, and nothing has to be handed over.
//
//     Trainer<Zero1<>> trainer(ctx, config);           // optimizer states cut between the ranks
//     Trainer<Zero2<>> trainer(ctx, config);           // and the gradients
//
//   source: Rajbhandari et al. 2020 (arXiv 1910.02054)

#include <skein/train/context.hpp>
#include <skein/train/detail/sharded.hpp>
#include <skein/train/strategy.hpp>
#include <skein/train/wrap.hpp>

#include <string_view>

namespace skein {

/// Optimizer states are sharded; parameters and gradients are whole on every rank.
///   memory with AdamW in float32: 8 P + 8 P / N bytes per rank (parameters once per host)
///   cost   that of DDP: a reduce-scatter of the gradients and an all-gather of the parameters
///   errors those of DDP
template <class Wrap = bucket<>, train::precision_setting... Settings>
    requires wrap_policy<Wrap>
class Zero1 : public train::detail::sharded_parallel {
public:
    static constexpr std::string_view name = "Zero1";
    [[nodiscard]] static train::precision_policy used_precision() {
        return train::precision_of<Settings...>();
    }

    Zero1(const train::context& ctx, torch::nn::Module& module)
        : sharded_parallel(ctx, module,
                           {.name = name, .shard_states = true, .precision = used_precision()},
                           train::detail::plan_of<Wrap>()) {}
};

/// Optimizer states and gradients are sharded; parameters are whole on every rank. After a backward
/// pass parameters have no .grad: store().own_grads() has what this rank owns.
///   memory with AdamW in float32: 4 P + 12 P / N bytes per rank, and two units of gradients
///   cost   that of DDP, the gradients' part once per micro-batch
///   errors those of DDP
template <class Wrap = bucket<>, train::precision_setting... Settings>
    requires wrap_policy<Wrap>
class Zero2 : public train::detail::sharded_parallel {
public:
    static constexpr std::string_view name = "Zero2";
    [[nodiscard]] static train::precision_policy used_precision() {
        return train::precision_of<Settings...>();
    }

    Zero2(const train::context& ctx, torch::nn::Module& module)
        : sharded_parallel(ctx, module,
                           {.name = name,
                            .shard_states = true,
                            .shard_gradients = true,
                            .precision = used_precision()},
                           train::detail::plan_of<Wrap>()) {}
};

static_assert(train::strategy<Zero1<>> && train::strategy<Zero2<>>);

} // namespace skein
