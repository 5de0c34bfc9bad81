// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/train/recompute.hpp>.

#include <skein/core/check.hpp>
#include <skein/core/error.hpp>
#include <skein/torch/torch.hpp>
#include <skein/train/unit.hpp>

namespace skein::train {

SKEIN_INLINE std::size_t checkpoint_activations(torch::nn::Module& model,
                                                const block_filter& which) {
    std::size_t units = 0, chosen = 0;
    for (const auto& item : model.named_modules(std::string(), /*include_self=*/false)) {
        auto* const mark = dynamic_cast<unit_mark*>(item.value().get());
        if (mark == nullptr) continue;
        units += 1;
        const bool yes = which(item.key());
        mark->recompute(yes);
        chosen += yes ? 1 : 0;
    }
    if (units == 0)
        throw error(errc::invalid_argument, "the model has no skein::unit to compute again")
            .with_hint("declare its blocks with TORCH_MODULE_IMPL(Block, skein::unit<BlockImpl>)");
    return chosen;
}

SKEIN_INLINE std::size_t checkpoint_activations(torch::nn::Module& model, int every) {
    SKEIN_CHECK(every >= 0, "every {}-th block", every);
    if (every == 0) { // also of a model without blocks
        for (const auto& each : model.modules(/*include_self=*/false))
            if (auto* const mark = dynamic_cast<unit_mark*>(each.get())) mark->recompute(false);
        return 0;
    }
    std::size_t number = 0;
    return checkpoint_activations(
        model, [&](std::string_view) { return number++ % static_cast<std::size_t>(every) == 0; });
}

} // namespace skein::train
