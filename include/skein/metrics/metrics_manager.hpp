// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which metrics a run has, for training and for each evaluation set.
//
//     skein::metrics_manager all{
//         on("train", accuracy{.classes = 10}),
//         on("val", accuracy{.classes = 10}, named("error", mean_absolute_error{}))};
//     trainer.measure(all);
//
// In files, callbacks and the result they are called "train_accuracy", "val_accuracy", "val_error";
// those of a whole epoch "train_epoch_accuracy".

#include <skein/core/error.hpp>
#include <skein/metrics/metric_list.hpp>

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace skein::metrics {

/// A metric under a name of its own.
template <metric M>
[[nodiscard]] any_metric named(std::string name, M made) {
    return any_metric(std::move(name), std::move(made));
}

/// The metrics of one stage: "train", or the name of an evaluation set.
struct stage_metrics {
    std::string stage{};
    metric_list metrics{};
};

/// Of metrics, or of what named() gives.
template <class... M>
    requires(sizeof...(M) > 0) && ((metric<M> || std::is_same_v<M, any_metric>) && ...)
[[nodiscard]] stage_metrics on(std::string stage, M... made) {
    stage_metrics out{.stage = std::move(stage)};
    const auto add = [&]<class One>(One one) {
        if constexpr (std::is_same_v<One, any_metric>)
            out.metrics.add(std::move(one));
        else
            out.metrics.add(name_of<One>(), std::move(one));
    };
    (add(std::move(made)), ...);
    return out;
}

/// When the metrics of training are merged over the ranks and written.
struct manager_options {
    /// Steps of a window, for "train_<name>"; 0: as often as evaluations come, 100 without any.
    std::int64_t every = 0;
};

/// See above; a value. Every rank makes the same one, which is checked.
class metrics_manager {
public:
    metrics_manager() = default;
    /// Throws errc::usage for a stage without a name and for a metric of training whose name begins
    /// with "epoch_", already_exists for a stage that is there twice.
    metrics_manager(std::initializer_list<stage_metrics> stages, manager_options how = {});

    [[nodiscard]] const std::vector<stage_metrics>& stages() const noexcept { return stages_; }
    [[nodiscard]] const manager_options& options() const noexcept { return how_; }
    /// Null when it has no metrics.
    [[nodiscard]] const metric_list* find(std::string_view stage) const noexcept;

private:
    std::vector<stage_metrics> stages_;
    manager_options how_;
};

} // namespace skein::metrics

namespace skein {
using metrics::metrics_manager;
}

#if SKEIN_HEADER_ONLY
#include <skein/metrics/detail/metrics_manager.ipp>
#endif
