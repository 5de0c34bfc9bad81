// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/train/weight_mean.hpp>.

#include <skein/core/error.hpp>
#include <skein/train/detail/weight_map.ipp>
#include <skein/train/element_values.hpp>

#include <set>
#include <utility>

#include <fmt/core.h>

namespace skein::train {

namespace detail {

/// "F32 [2, 3]", or that it is not there.
SKEIN_INLINE std::string kind_text(const source_table& table, const std::string& name) {
    const auto found = table.find(name);
    return found == table.end() ? "not there"
                                : tensor_text(found->second.dtype, found->second.shape);
}

} // namespace detail

SKEIN_INLINE mean_weights::mean_weights(std::vector<std::unique_ptr<weight_source>> of)
    : weight_source("the mean"), of_(std::move(of)) {
    if (of_.empty()) throw error(errc::invalid_argument, "the mean of no weights");
    tensors_ = of_.front()->tensors();
    const auto& ours = tensors_;
    detail::complaint_list wrong;
    for (std::size_t i = 1; i < of_.size(); ++i) {
        const auto& theirs = of_[i]->tensors();
        std::set<std::string> names;
        for (const auto* side : {&ours, &theirs})
            for (const auto& [name, t] : *side) names.insert(name);
        for (const auto& name : names) {
            const auto a = ours.find(name), b = theirs.find(name);
            if (a != ours.end() && b != theirs.end() && a->second == b->second) continue;
            wrong.add(fmt::format("{} is {} in {} and {} in {}", name,
                                  detail::kind_text(ours, name), of_.front()->path(),
                                  detail::kind_text(theirs, name), of_[i]->path()));
        }
    }
    if (!wrong.empty())
        throw error(errc::mismatch,
                    fmt::format("the weights of different models have no mean: {}", wrong.text()))
            .with_hint("average checkpoints of one model");
}

SKEIN_INLINE void mean_weights::read_rows(const std::string& name, const source_tensor& tensor,
                                          std::int64_t first_row, std::int64_t rows,
                                          mut_byte_span into) const {
    if (!is_float_type(tensor.dtype)) return of_.back()->read(name, first_row, rows, into);
    std::vector<double> sum(into.size() / dtype_size(tensor.dtype).value(), 0.0), part(sum.size());
    for (const auto& from : of_) {
        from->read(name, first_row, rows, into);
        read_values(tensor.dtype, into, part);
        for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
    }
    const auto count = static_cast<double>(of_.size());
    for (auto& each : sum) each /= count;
    write_values(tensor.dtype, sum, into);
}

} // namespace skein::train
