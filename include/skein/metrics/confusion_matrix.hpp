// SPDX-License-Identifier: Apache-2.0
#pragma once
// How often each class was taken for each: rows are targets, columns predictions (source:
// torchmetrics 1.9, functional/classification/confusion_matrix.py).
//
//     confusion_matrix{.classes = 10}                               // [10, 10]
//     confusion_matrix{.classes = 10, .normalize = normalize::rows} // of each target, how much
//     confusion_matrix{.labels = 5}                                 // [5, 2, 2]
//     confusion_matrix{}                                            // binary: [2, 2]

#include <skein/core/option_count.hpp>
#include <skein/metrics/stat_scores.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace skein::metrics {

/// What the cells are divided by. A cell of nothing is 0.
enum class normalize : std::uint8_t {
    none,    ///< 1: they are counts
    rows,    ///< the sum of their row; "true" of torchmetrics
    columns, ///< the sum of their column; "pred" of torchmetrics
    all,     ///< the sum of all
};

[[nodiscard]] constexpr std::string_view to_string(normalize how) noexcept {
    switch (how) {
    case normalize::none: return "none";
    case normalize::rows: return "rows";
    case normalize::columns: return "columns";
    case normalize::all: return "all";
    }
    return "unknown";
}

/// See above. What it is shown, and what its options mean: stat_scores.hpp.
struct confusion_matrix {
    static constexpr std::string_view name = "confusion_matrix";
    option_count classes = 0, labels = 0;
    metrics::normalize normalize = metrics::normalize::none;
    double threshold = 0.5;
    std::optional<bool> logits{}; ///< of multilabel and binary: see stat_options
    std::optional<std::int64_t> ignore_index{};
    summed counts{};

    void begin();
    void update(const samples& shown);
    [[nodiscard]] score compute() const;
};

} // namespace skein::metrics

#if SKEIN_HEADER_ONLY
#include <skein/metrics/detail/confusion_matrix.ipp>
#endif
