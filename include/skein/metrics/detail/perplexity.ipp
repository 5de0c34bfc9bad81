// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/metrics/perplexity.hpp>.

#include <skein/metrics/detail/fast_exp.hpp>
#include <skein/metrics/detail/shapes.hpp>

#include <cmath>
#include <cstddef>
#include <limits>

namespace skein::metrics {

namespace detail {

/// Calls it with each token that counts, its logits and its weight.
template <class T>
void add_tokens(const perplexity& of, const samples& shown, const T* logits, double& nats,
                double& weight) {
    const auto& target = shown.target;
    const auto width = shown.preds.extent(target.dimensions());
    const weights counts(shown);
    const labels tokens(target);
    for (std::size_t i = 0; i < target.size(); ++i) {
        const double w = counts[i];
        const auto token = tokens[i];
        if (w == 0 || token == of.ignore_index) continue;
        if (token < 0 || token >= static_cast<std::int64_t>(width))
            refuse_label("target", target, i, width, of.ignore_index);
        const T* row = logits + i * width;
        const T most = largest_of(row, width, 1);
        if (most == std::numeric_limits<T>::infinity()) { // inf / inf
            std::size_t c = 0;
            while (row[c] != most) ++c;
            refuse_nan("preds", shown.preds, i * width + c);
        }
        const double mine = static_cast<double>(row[token]) - static_cast<double>(most);
        const double lost = std::log(sum_of_exp(row, width, 1, most)) - mine;
        if (lost != lost)
            for (std::size_t c = 0; c < width; ++c)
                if (row[c] != row[c]) refuse_nan("preds", shown.preds, i * width + c);
        nats += w * lost;
        weight += w;
    }
}

} // namespace detail

SKEIN_INLINE void perplexity::update(const samples& shown) {
    const auto& [preds, target, weights] = shown;
    const auto wanted = "logits [..., V] with tokens [...]";
    if (!preds.is_given() || !target.is_given() || !preds.is_floating() ||
        preds.dimensions() != target.dimensions() + 1)
        detail::refuse_shapes(shown, wanted, "the dimension of the vocabulary is the last");
    for (std::size_t d = 0; d < target.dimensions(); ++d)
        if (preds.extent(d) != target.extent(d))
            detail::refuse_shapes(shown, wanted, "the dimension of the vocabulary is the last");
    detail::check_labels("target", target);
    if (preds.float32() != nullptr)
        detail::add_tokens(*this, shown, preds.float32(), nats[0], weight[0]);
    else
        detail::add_tokens(*this, shown, preds.float64(), nats[0], weight[0]);
}

} // namespace skein::metrics
