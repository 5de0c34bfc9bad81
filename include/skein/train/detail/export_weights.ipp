// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/train/export_weights.hpp>.

#include <skein/core/error.hpp>
#include <skein/torch/torch.hpp>
#include <skein/train/build.hpp>
#include <skein/train/detail/weights.ipp>
#include <skein/train/training_state.hpp>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

namespace skein::train {

SKEIN_INLINE module_weights::module_weights(torch::nn::Module& module)
    : weight_source("the model in memory") {
    if (!detail::cut_parameters(module).empty())
        throw error(errc::not_supported, "not supported: the weights of a model that build() has "
                                         "cut up, of which this rank has a part")
            .with_hint("export the run's folder, which has all of them");
    for (auto& target : detail::target_tensors(module)) {
        tensors_.emplace(target.wanted.name,
                         source_tensor{target.wanted.dtype, target.wanted.shape});
        held_.emplace_back(target.wanted.name, target.rows);
    }
}

SKEIN_INLINE void module_weights::read_rows(const std::string& name, const source_tensor& tensor,
                                            std::int64_t first_row, std::int64_t rows,
                                            mut_byte_span into) const {
    const auto found = std::ranges::find(held_, name, &std::pair<std::string, at::Tensor>::first);
    const auto part =
        tensor.shape.empty() ? found->second : found->second.narrow(0, first_row, rows);
    const auto dense = part.cpu().contiguous();
    std::memcpy(into.data(), dense.const_data_ptr(), into.size());
}

SKEIN_INLINE exported_weights export_safetensors(torch::nn::Module& module,
                                                 const std::string& folder,
                                                 const export_options& options) {
    at::NoGradGuard no_grad;
    return export_safetensors(module_weights(module), folder, options);
}

} // namespace skein::train
