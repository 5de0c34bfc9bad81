// SPDX-License-Identifier: Apache-2.0
#pragma once
// Where a loss runs, and whom it tells what the model said: the third argument of a loss function.
//
//     const auto loss = [](Net& net, const batch& b, skein::train::stage& stage) {
//         const auto logits = net->forward(b.images);
//         stage.update(logits, b.labels);                 // of the metrics of this stage
//         stage.sum("seen", 64);
//         return torch::nn::functional::cross_entropy(logits, b.labels);
//     };
//
// A loss that takes a report::metric_set& gets the numbers alone, as before.

#include <skein/core/error.hpp>
#include <skein/metrics/metric_list.hpp>
#include <skein/report/metrics.hpp>
#include <skein/torch/tensor.hpp>

#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace skein::train {

/// Training, or one evaluation set. Not thread-safe; belongs to the session.
class stage {
public:
    /// list: null when no metrics are declared for this stage; what is shown then is passed over
    /// where the run has some for other stages, and is an error where it has none at all.
    stage(std::string name, report::metric_set& numbers, metrics::metric_list* list,
          bool has_manager)
        : name_(std::move(name)), numbers_(&numbers), list_(list), has_manager_(has_manager) {}

    /// "train", or the name of the evaluation set.
    [[nodiscard]] const std::string& name() const noexcept { return name_; }
    [[nodiscard]] bool is_training() const noexcept { return name_ == "train"; }

    /// Shows all metrics of the stage one batch of this rank. Nothing is exchanged.
    ///   preds   e.g. scores [N, C] of a floating type, or labels [N]
    ///   target  e.g. labels [N]
    ///   weight  what each element of target counts, e.g. a mask; undefined: 1
    ///   errors  what the metrics say, with the metric's name; usage when the run has no metrics;
    ///           not_supported for tensors that are not in the host's memory
    void update(const at::Tensor& preds, const at::Tensor& target, const at::Tensor& weight = {});
    /// Only the metric of that name.
    void update(std::string_view metric, const at::Tensor& preds, const at::Tensor& target,
                const at::Tensor& weight = {});
    /// The same for arrays that are no tensors.
    void update(const metrics::samples& shown);
    void update(std::string_view metric, const metrics::samples& shown);

    // ---- numbers without a metric, see report/metrics.hpp ----------------------------------------

    stage& mean(std::string_view name, double value, std::optional<double> weight = {}) {
        numbers_->mean(name, value, weight);
        return *this;
    }
    stage& sum(std::string_view name, double value) {
        numbers_->sum(name, value);
        return *this;
    }
    stage& max(std::string_view name, double value) {
        numbers_->max(name, value);
        return *this;
    }
    stage& min(std::string_view name, double value) {
        numbers_->min(name, value);
        return *this;
    }
    stage& last(std::string_view name, double value) {
        numbers_->last(name, value);
        return *this;
    }
    operator report::metric_set&() noexcept { return *numbers_; }
    [[nodiscard]] report::metric_set& numbers() noexcept { return *numbers_; }

private:
    [[nodiscard]] bool has_metrics() const;

    std::string name_;
    report::metric_set* numbers_;
    metrics::metric_list* list_;
    bool has_manager_;
};

} // namespace skein::train

#if SKEIN_HEADER_ONLY
#include <skein/train/detail/stage.ipp>
#endif
