// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/train/single.hpp>.

#include <skein/core/error.hpp>
#include <skein/train/unit.hpp>

#include <fmt/core.h>

namespace skein::train::detail {

SKEIN_INLINE single_process::single_process(const context& ctx, torch::nn::Module& module,
                                            const precision_policy& policy)
    : ctx_(&ctx), module_(&module), store_(module, {.precision = policy}) {
    rebind();
    cast_inputs(module, store_, /*on=*/true);
}

SKEIN_INLINE single_process::~single_process() { show_masters(); }

SKEIN_INLINE void single_process::finish_backward() {
    store_.settle_gradients();
    store_.take_writes();
    if (store_.keeps_own_grads())
        for (const auto& u : store_.units()) store_.take_gradients(u, /*add=*/false);
}

SKEIN_INLINE bool single_process::wait_for_pieces() {
    for (const auto& each : module_->modules(/*include_self=*/false))
        if (dynamic_cast<const unit_mark*>(each.get()) != nullptr)
            store_.ask_before([](std::size_t) { return false; });
    return false;
}

SKEIN_INLINE void single_process::rebind() const {
    if (ctx_->world_size() == 1) return;
    throw error(errc::usage,
                fmt::format("strategy Single in a world of {} workers", ctx_->world_size()))
        .with_hint("use Trainer<DDP<>>, or one worker");
}

SKEIN_INLINE void single_process::sync_buffers() {
    store_.require_taken();
    store_.take_writes();
}

SKEIN_INLINE void single_process::finish() {
    store_.require_taken();
    store_.take_writes();
    show_masters();
}

SKEIN_INLINE void single_process::show_masters() {
    if (!store_.is_mixed()) return;
    cast_inputs(*module_, store_, /*on=*/false);
    store_.show_masters(/*whole=*/true);
}

} // namespace skein::train::detail
