// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/train/stage.hpp>.

#include <skein/torch/torch.hpp>

#include <vector>

#include <fmt/core.h>

namespace skein::train {

namespace detail {

/// A tensor as an array of the host, which lives as long as this.
class host_array {
public:
    host_array(const at::Tensor& from, const char* what) {
        if (!from.defined()) return;
        if (!from.device().is_cpu())
            throw error(errc::not_supported, fmt::format("not supported: {} of a metric on {}",
                                                         what, from.device().str()))
                .with_hint("metrics read the host's memory: show them tensor.cpu()");
        const at::NoGradGuard no_grad;
        held_ = from.detach();
        const auto type = element_of(held_.scalar_type(), what);
        held_ = held_.to(scalar_of(type)).contiguous();
        const std::vector<std::size_t> shape(held_.sizes().begin(), held_.sizes().end());
        view_ = metrics::array_view(held_.const_data_ptr(), type, shape);
    }
    [[nodiscard]] const metrics::array_view& view() const noexcept { return view_; }

private:
    [[nodiscard]] static metrics::element element_of(at::ScalarType type, const char* what) {
        switch (type) {
        case at::kDouble: return metrics::element::float64;
        case at::kFloat:
        case at::kHalf:
        case at::kBFloat16: return metrics::element::float32;
        case at::kBool: return metrics::element::boolean;
        default:
            if (at::isIntegralType(type, /*includeBool=*/false)) return metrics::element::int64;
            throw error(errc::not_supported, fmt::format("not supported: {} of a metric of type {}",
                                                         what, c10::toString(type)))
                .with_hint("show it real numbers, truths or labels");
        }
    }
    [[nodiscard]] static at::ScalarType scalar_of(metrics::element type) {
        switch (type) {
        case metrics::element::float64: return at::kDouble;
        case metrics::element::float32: return at::kFloat;
        case metrics::element::boolean: return at::kBool;
        case metrics::element::int64: break;
        }
        return at::kLong;
    }

    at::Tensor held_;
    metrics::array_view view_;
};

} // namespace detail

SKEIN_INLINE bool stage::has_metrics() const {
    if (list_ != nullptr) return true;
    if (has_manager_) return false;
    throw error(errc::usage, fmt::format("stage \"{}\" has no metrics to update", name_))
        .with_hint("declare them before the first step: trainer.measure(metrics_manager{on(\"" +
                   name_ + "\", ...)})");
}
SKEIN_INLINE void stage::update(const metrics::samples& shown) {
    if (has_metrics()) list_->update(shown);
}
SKEIN_INLINE void stage::update(std::string_view metric, const metrics::samples& shown) {
    if (has_metrics()) list_->update(metric, shown);
}
SKEIN_INLINE void stage::update(const at::Tensor& preds, const at::Tensor& target,
                                const at::Tensor& weight) {
    if (!has_metrics()) return;
    const detail::host_array p(preds, "preds"), t(target, "target"), w(weight, "weight");
    list_->update({.preds = p.view(), .target = t.view(), .weight = w.view()});
}
SKEIN_INLINE void stage::update(std::string_view metric, const at::Tensor& preds,
                                const at::Tensor& target, const at::Tensor& weight) {
    if (!has_metrics()) return;
    const detail::host_array p(preds, "preds"), t(target, "target"), w(weight, "weight");
    list_->update(metric, {.preds = p.view(), .target = t.view(), .weight = w.view()});
}

} // namespace skein::train
