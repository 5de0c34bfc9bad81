// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/metrics/metrics_manager.hpp>.

#include <fmt/core.h>

namespace skein::metrics {

SKEIN_INLINE metrics_manager::metrics_manager(std::initializer_list<stage_metrics> stages,
                                              manager_options how)
    : how_(how) {
    if (how_.every < 0)
        throw error(errc::usage, fmt::format("a window of {} steps", how_.every))
            .with_hint("give the steps of a window, or 0: as often as evaluations come");
    for (const auto& each : stages) {
        if (each.stage.empty())
            throw error(errc::usage, "metrics of a stage without a name")
                .with_hint("call it \"train\", or as an evaluation set: \"val\"");
        if (find(each.stage) != nullptr)
            throw error(errc::already_exists,
                        fmt::format("metrics of \"{}\" are given twice", each.stage))
                .with_hint("give them all at once: on(\"val\", one, other)");
        for (const auto& name : each.metrics.names())
            if (each.stage == "train" && name.starts_with("epoch_"))
                throw error(errc::usage, fmt::format("a metric of training called \"{}\"", name))
                    .with_hint("\"train_epoch_...\" are those of whole epochs: call it otherwise");
        stages_.push_back(each);
    }
}

SKEIN_INLINE const metric_list* metrics_manager::find(std::string_view stage) const noexcept {
    for (const auto& each : stages_)
        if (each.stage == stage) return &each.metrics;
    return nullptr;
}

} // namespace skein::metrics
