// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/train/single.hpp>.

#include <skein/core/error.hpp>

#include <fmt/core.h>

namespace skein {

SKEIN_INLINE Single::Single(const train::context& ctx, torch::nn::Module& module) : store_(module) {
    if (ctx.world_size() != 1)
        throw error(errc::usage,
                    fmt::format("strategy Single in a world of {} workers", ctx.world_size()))
            .with_hint("use Trainer<DDP<>>, or one worker");
}

} // namespace skein
