// SPDX-License-Identifier: Apache-2.0
#pragma once
// The mean of the weights of several checkpoints, which often generalises better than the last one.
//
//     std::vector<std::unique_ptr<weight_source>> of;
//     for (const auto& path : paths) of.push_back(open_weights(here, path));
//     export_safetensors(mean_weights(std::move(of)), "averaged");
//
// Each element is the sum of those of all sources, added up in float64, divided by their number and
// rounded once to its type. Whole numbers (a counter of batches) are those of the last source.
// Running statistics of batch norm are averaged with the rest and are not those of the averaged
// weights: update them over some batches before such a model is used.
//   source: Polyak, Juditsky: Acceleration of Stochastic Approximation by Averaging, SIAM J. Control
//   Optim. 30 (1992), (2); Izmailov et al.: Averaging Weights Leads to Wider Optima and Better
//   Generalization, arXiv:1803.05407, algorithm 1, where the mean is updated one by one

#include <skein/train/weight_source.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace skein::train {

/// The mean as a source of its own; rows are averaged as they are read.
class mean_weights final : public weight_source {
public:
    /// Throws invalid_argument for no source; mismatch, with every tensor that not all of them have
    /// with the same type and shape, in one message.
    explicit mean_weights(std::vector<std::unique_ptr<weight_source>> of);

private:
    void read_rows(const std::string& name, const source_tensor& tensor, std::int64_t first_row,
                   std::int64_t rows, mut_byte_span into) const override;

    std::vector<std::unique_ptr<weight_source>> of_;
};

} // namespace skein::train

#if SKEIN_HEADER_ONLY
#include <skein/train/detail/weight_mean.ipp>
#endif
