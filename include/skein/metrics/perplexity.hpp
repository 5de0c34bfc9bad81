// SPDX-License-Identifier: Apache-2.0
#pragma once
// How many tokens a language model hesitates between: the exponential of the mean of -log p(token)
// (source: torchmetrics 1.9, functional/text/perplexity.py).
//
//     perplexity{.ignore_index = -100}
//
// Preds are logits [..., V], target tokens [...]: the dimension of the vocabulary is the last.

#include <skein/metrics/metric.hpp>
#include <skein/metrics/samples.hpp>

#include <cmath>
#include <cstdint>
#include <optional>
#include <string_view>

namespace skein::metrics {

/// See above. Without samples NaN. p is never rounded to 0, as it is in torchmetrics, whose answer is
/// infinite then.
struct perplexity {
    static constexpr std::string_view name = "perplexity";
    std::optional<std::int64_t> ignore_index{};
    summed nats{}, weight{};

    void update(const samples& shown);
    [[nodiscard]] double compute() const { return std::exp(nats[0] / weight[0]); }
};

} // namespace skein::metrics

#if SKEIN_HEADER_ONLY
#include <skein/metrics/detail/perplexity.ipp>
#endif
