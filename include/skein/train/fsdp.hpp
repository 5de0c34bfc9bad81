// SPDX-License-Identifier: Apache-2.0
#pragma once
// Fully sharded data parallel training (ZeRO-3): parameters, gradients and optimizer states are cut
// between the ranks, block by block.
//
//     TORCH_MODULE_IMPL(Block, skein::unit<BlockImpl>);              // marks the block
//     Trainer<FSDP<auto_wrap<Block>>> trainer(ctx, config);
//     Trainer<FSDP<auto_wrap<Block>, reshard_after_forward<false>>> other(ctx, config);
//     Trainer<FSDP<auto_wrap<Block>, precision<bf16>>> half(ctx, config);
//     // sharded inside hosts, replicated between
//     Trainer<Hybrid<auto_wrap<Block>>> hosts(ctx, config);
//
// Between hosts a block is gathered when its forward or backward begins, the next one ahead of it,
// and dropped when it has ended. On one host the ranks' parts are mapped side by side into one
// memory that all ranks compute with: nothing is gathered and no byte is there twice.
//
//   source: Zhao et al. 2023 (arXiv 2304.11277); hybrid as in MiCS, Zhang et al. 2022
//   (arXiv 2205.00119)

#include <skein/train/context.hpp>
#include <skein/train/detail/sharded.hpp>
#include <skein/train/precision.hpp>
#include <skein/train/strategy.hpp>
#include <skein/train/unit.hpp>
#include <skein/train/wrap.hpp>

#include <string_view>
#include <type_traits>

namespace skein {

/// So many units are gathered ahead of the one that is computed.
template <int Units>
struct prefetch {
    static_assert(Units >= 0);
    static void apply(train::detail::shard_policy& policy) { policy.prefetch = Units; }
};

/// false: units stay gathered between forward and backward (more memory, a third less to send).
template <bool Reshard>
struct reshard_after_forward {
    static void apply(train::detail::shard_policy& policy) {
        policy.reshard_after_forward = Reshard;
    }
};

namespace train::detail {
template <class... Settings>
[[nodiscard]] shard_policy fsdp_policy(std::string_view name, bool inside_hosts) {
    shard_policy policy{.name = name,
                        .shard_states = true,
                        .shard_gradients = true,
                        .shard_parameters = true,
                        .inside_hosts = inside_hosts};
    const auto apply = [&]<class S>(std::type_identity<S>) {
        if constexpr (!precision_setting<S>) S::apply(policy);
    };
    (apply(std::type_identity<Settings>{}), ...);
    policy.precision = precision_of<Settings...>();
    return policy;
}

/// What is wrapped by size has no constructor that could end.
template <class Wrap, class... Settings>
[[nodiscard]] build_plan plan_build_of(const context& ctx, std::string_view name,
                                       bool inside_hosts) {
    if constexpr (requires(const torch::nn::Module& m) { Wrap::is_block(m); }) {
        auto plan = plan_build(ctx, fsdp_policy<Settings...>(name, inside_hosts));
        plan.is_block = [](const torch::nn::Module& m) { return Wrap::is_block(m); };
        return plan;
    } else {
        return {};
    }
}
} // namespace train::detail

/// Everything is sharded over all ranks. What belongs to no block is the root: it is gathered for
/// the whole step. After a backward pass parameters have no .grad: store().own_grads() has what
/// this rank owns.
///   Wrap   auto_wrap<Block...> or auto_wrap_size<n>; between hosts blocks have to be skein::unit
///   memory with AdamW in float32: 16 P / N bytes per rank, and two units of gradients; between
///          hosts also the parameters of the units in use, and gradients that the network has not
///          taken yet
///   cost   3(N-1)/N of the parameter bytes per rank and micro-batch; on one host (N-1)/N
///   errors those of DDP; invalid_argument when no block matches, with the types that there are;
///          not_supported for a block that would have to be gathered and is no skein::unit
template <class Wrap, class... Settings>
    requires wrap_policy<Wrap>
class FSDP : public train::detail::sharded_parallel {
public:
    static constexpr std::string_view name = "FSDP";
    static constexpr bool works_on_devices =
        true; ///< by communicator "host" or "nccl"; never run: docs/gpu.md
    [[nodiscard]] static train::precision_policy used_precision() {
        return train::precision_of<Settings...>();
    }

    FSDP(const train::context& ctx, torch::nn::Module& module)
        : sharded_parallel(ctx, module, train::detail::fsdp_policy<Settings...>(name, false),
                           train::detail::plan_of<Wrap>()) {}

    /// For Trainer::build().
    [[nodiscard]] static train::detail::build_plan plan_build(const train::context& ctx) {
        return train::detail::plan_build_of<Wrap, Settings...>(ctx, name, false);
    }
};

/// FSDP inside each host, and each rank's part summed with its counterparts on the other hosts.
///   memory with L ranks per host: 16 P / L bytes per rank
///   cost   between hosts 2(H-1)/H of P / L per rank and micro-batch, H hosts
///   errors those of FSDP; usage when hosts have different numbers of ranks
template <class Wrap, class... Settings>
    requires wrap_policy<Wrap>
class Hybrid : public train::detail::sharded_parallel {
public:
    static constexpr std::string_view name = "Hybrid";
    [[nodiscard]] static train::precision_policy used_precision() {
        return train::precision_of<Settings...>();
    }

    Hybrid(const train::context& ctx, torch::nn::Module& module)
        : sharded_parallel(ctx, module, train::detail::fsdp_policy<Settings...>(name, true),
                           train::detail::plan_of<Wrap>()) {}

    /// For Trainer::build().
    [[nodiscard]] static train::detail::build_plan plan_build(const train::context& ctx) {
        return train::detail::plan_build_of<Wrap, Settings...>(ctx, name, true);
    }
};

static_assert(train::strategy<FSDP<auto_wrap_size<1>>> &&
              train::strategy<Hybrid<auto_wrap_size<1>>>);

} // namespace skein
