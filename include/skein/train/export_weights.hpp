// SPDX-License-Identifier: Apache-2.0
#pragma once
// Weights as other programs read them: a folder of safetensors with an index and a config.json.
//
//     const auto map = skein::models::maps::gpt2();
//     skein::train::export_safetensors("runs/gpt", "out", {.map = map, .config = config_text});
//     // in Python: GPT2LMHeadModel.from_pretrained("out")
//
// What needs no LibTorch of it is in <skein/train/weight_folder.hpp>: how the folder is written.

#include <skein/torch/tensor.hpp>
#include <skein/train/weight_folder.hpp>
#include <skein/train/weight_source.hpp>
#include <skein/train/weights.hpp>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace skein::train {

/// The tensors of a module in memory as a source. It has to be whole.
class module_weights final : public weight_source {
public:
    /// Throws not_supported for a model that build() has cut up.
    explicit module_weights(torch::nn::Module& module);

private:
    void read_rows(const std::string& name, const source_tensor& tensor, std::int64_t first_row,
                   std::int64_t rows, mut_byte_span into) const override;

    std::vector<std::pair<std::string, at::Tensor>> held_;
};

/// Of a module that is whole in this process.
exported_weights export_safetensors(torch::nn::Module& module, const std::string& folder,
                                    const export_options& options = {});

} // namespace skein::train

#if SKEIN_HEADER_ONLY
#include <skein/train/detail/export_weights.ipp>
#endif
