// SPDX-License-Identifier: Apache-2.0
#pragma once
// Data parallel training: every rank holds the whole model and sees its share of each batch.
//
// The gradients are cut into buckets. Every gradient that is settled counts down; when a bucket is
// complete, and all before it are on their way, its all-reduce starts on the communication thread
// while the backward pass goes on. Buckets leave in the same order on every rank whatever the order
// of hooks, so parameters that a rank does not use cannot hang the others.
//
//     Trainer<DDP<>> trainer(ctx, config);             // buckets of 1 and then 25 MiB
//     Trainer<DDP<bucket<1, 8>>> smaller(ctx, config);
//     Trainer<DDP<bucket<>, precision<bf16>>> half(ctx, config);
//
//   source: Li et al. 2020 (arXiv 2006.15704)

#include <skein/train/context.hpp>
#include <skein/train/detail/sharded.hpp>
#include <skein/train/strategy.hpp>
#include <skein/train/wrap.hpp>

#include <string_view>

namespace skein {

/// Gradients are summed over all ranks; parameters stay equal bit for bit on every rank.
///   construction broadcasts rank 0's parameters and buffers, and compares the models' layouts
///   memory 16 P bytes per rank with AdamW in float32: parameters, gradients, two states
///   cost   2(N-1)/N of the gradient bytes per rank and step, mostly during the backward pass
///   errors mismatch when the ranks' models differ; peer_lost, timeout, aborted from the transport
template <class Bucket = bucket<>, train::precision_setting... Settings>
class DDP : public train::detail::sharded_parallel {
public:
    static constexpr std::string_view name = "DDP";
    static constexpr bool works_on_devices =
        true; ///< by communicator "host" or "nccl"; never run: docs/gpu.md
    /// Every rank has everything: any of them may be lost, and new ones get a copy.
    static constexpr bool ranks_may_change = true;
    [[nodiscard]] static train::precision_policy used_precision() {
        return train::precision_of<Settings...>();
    }

    DDP(const train::context& ctx, torch::nn::Module& module)
        : sharded_parallel(ctx, module, {.name = name, .precision = used_precision()},
                           train::detail::plan_of<Bucket>()) {}

    using sharded_parallel::sum_by_shards;
};

static_assert(train::strategy<DDP<>>);

} // namespace skein
