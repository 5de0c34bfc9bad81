// SPDX-License-Identifier: Apache-2.0
#pragma once
// Weights as other programs read them: a folder of safetensors with an index and a config.json.
//
//     const auto map = skein::models::maps::gpt2();
//     skein::train::export_safetensors("runs/gpt", "out", {.map = map, .config = config_text});
//     // in Python: GPT2LMHeadModel.from_pretrained("out")
//
// Tensors are written one at a time, so that no more than one is held beside what is there. The
// folder gets its name when all of it is on disk.

#include <skein/torch/tensor.hpp>
#include <skein/train/weight_map.hpp>
#include <skein/train/weight_source.hpp>
#include <skein/train/weights.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace skein::train {

/// How the folder is written.
struct export_options {
    std::uint64_t max_shard = 5'000'000'000; ///< bytes of tensors of one file, but for a larger one
    weight_map map{};                        ///< from the folder to the module, as for loading
    std::string dtype{};  ///< of numbers of floating point: F32, BF16, F16; empty: as they are
    std::string config{}; ///< the text of config.json; empty: none is written
};

/// What was written.
struct exported_weights {
    std::string path;
    std::vector<std::string> files; ///< of tensors
    std::uint64_t bytes = 0;        ///< of all tensors
};

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

/// Writes the weights into a new folder.
///   errors  already_exists when there is something of that name; those of plan_export; not_supported
///           for a type; disk errors, after which nothing of the folder is left
exported_weights export_safetensors(const weight_source& from, const std::string& folder,
                                    const export_options& options = {});
/// Of a module that is whole in this process.
exported_weights export_safetensors(torch::nn::Module& module, const std::string& folder,
                                    const export_options& options = {});
/// Of what open_weights() takes: a run's folder, a checkpoint, a file.
exported_weights export_safetensors(const std::string& from, const std::string& folder,
                                    const export_options& options = {});

} // namespace skein::train

#if SKEIN_HEADER_ONLY
#include <skein/train/detail/export_weights.ipp>
#endif
