// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/metrics/detail/shapes.hpp>.

#include <algorithm>

#include <fmt/core.h>

namespace skein::metrics::detail {

SKEIN_INLINE std::string place(std::string_view what, const array_view& of, std::size_t i) {
    std::string at;
    for (std::size_t d = of.dimensions(); d-- > 0; i /= of.extent(d))
        at = fmt::format("{}{}{}", i % of.extent(d), at.empty() ? "" : ", ", at);
    return fmt::format("{}[{}]", what, at);
}

SKEIN_INLINE void refuse_label(std::string_view what, const array_view& of, std::size_t i,
                               std::size_t classes, std::optional<std::int64_t> ignored) {
    const auto value = of.int64() != nullptr ? of.int64()[i] : std::int64_t{of[i] != 0};
    throw error(errc::invalid_argument,
                fmt::format("{} is {}, labels are 0 to {}{}", place(what, of, i), value,
                            classes - 1,
                            ignored && what == "target" ? fmt::format(" or {}", *ignored) : ""))
        .with_hint(
            what == "target"
                ? fmt::format("is .ignore_index = {} or another number of classes meant?", value)
                : std::string("is another number of classes meant?"));
}

SKEIN_INLINE void refuse_nan(std::string_view what, const array_view& of, std::size_t i) {
    throw error(errc::not_finite, fmt::format("{} is {}", place(what, of, i), of[i]))
        .with_hint("look at the model's output, or leave the sample out by a weight of 0");
}

SKEIN_INLINE void refuse_weight(const array_view& weight, std::size_t i) {
    throw error(errc::invalid_argument,
                fmt::format("{} is {}", place("weight", weight, i), weight[i]))
        .with_hint("weights are finite and at least 0");
}

SKEIN_INLINE void refuse_shapes(const samples& shown, std::string_view wanted, std::string hint) {
    throw error(errc::invalid_argument,
                fmt::format("preds are {} and target is {}, not {}", shown.preds.text(),
                            shown.target.text(), wanted))
        .with_hint(std::move(hint));
}

SKEIN_INLINE void check_labels(std::string_view what, const array_view& labels) {
    if (labels.is_floating())
        throw error(errc::invalid_argument,
                    fmt::format("{} is {}, labels are int64 or bool", what, labels.text()))
            .with_hint("convert it, e.g. with to(torch::kInt64)");
}

SKEIN_INLINE void check_same_shape(const samples& shown) {
    if (!shown.preds.is_given() || !shown.target.is_given() ||
        !std::ranges::equal(shown.preds.shape(), shown.target.shape()))
        refuse_shapes(shown, "of one shape", "give each prediction its target");
}

SKEIN_INLINE class_shape check_classes(const samples& shown, std::size_t classes) {
    const auto& [preds, target, weight] = shown;
    const auto wanted =
        fmt::format("scores [N, {}, ...] or labels [N, ...] with labels [N, ...]", classes);
    if (!preds.is_given() || !target.is_given() || target.dimensions() == 0)
        refuse_shapes(shown, wanted, "show the metric predictions and labels");
    check_labels("target", target);
    class_shape out{.outer = target.extent(0)};
    for (std::size_t d = 1; d < target.dimensions(); ++d) out.inner *= target.extent(d);
    if (preds.dimensions() == target.dimensions()) {
        if (preds.is_floating())
            refuse_shapes(shown, wanted,
                          "scores have a dimension of classes behind the first; labels are int64");
        check_same_shape(shown);
        return out;
    }
    bool fits = preds.dimensions() == target.dimensions() + 1 && preds.is_floating() &&
                preds.extent(0) == out.outer;
    for (std::size_t d = 1; fits && d < target.dimensions(); ++d)
        fits = preds.extent(d + 1) == target.extent(d);
    if (!fits) refuse_shapes(shown, wanted, "scores are floating, labels int64 or bool");
    if (preds.extent(1) != classes)
        refuse_shapes(shown, wanted, fmt::format("is .classes = {} meant?", preds.extent(1)));
    out.scores = true;
    return out;
}

SKEIN_INLINE truth_shape check_truths(const samples& shown, std::size_t labels) {
    const auto& [preds, target, weight] = shown;
    if (preds.is_given() && target.is_given() && labels == 1 &&
        preds.dimensions() == target.dimensions() + 1)
        refuse_shapes(shown, "of one shape, as binary predictions are",
                      fmt::format("is .classes = {} meant?", preds.extent(1)));
    check_same_shape(shown);
    check_labels("target", target);
    if (labels == 1) return {.outer = 1, .inner = target.size()};
    if (target.dimensions() < 2 || target.extent(1) != labels)
        refuse_shapes(shown, fmt::format("[N, {}, ...]", labels),
                      "is another number of .labels meant?");
    truth_shape out{.outer = target.extent(0)};
    for (std::size_t d = 2; d < target.dimensions(); ++d) out.inner *= target.extent(d);
    return out;
}

SKEIN_INLINE weights::weights(const samples& shown) : weight_(shown.weight) {
    if (!given() || std::ranges::equal(weight_.shape(), shown.target.shape())) return;
    if (weight_.dimensions() != 1 || weight_.extent(0) != shown.target.extent(0))
        throw error(errc::invalid_argument, fmt::format("weight is {} and target is {}",
                                                        weight_.text(), shown.target.text()))
            .with_hint("give a weight for each element of target, or for each of its rows");
    if (weight_.size() > 0) each_ = shown.target.size() / weight_.size();
    if (each_ == 0) each_ = 1;
}

} // namespace skein::metrics::detail
