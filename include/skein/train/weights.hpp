// SPDX-License-Identifier: Apache-2.0
#pragma once
// A trained model's weights alone, for using it: no trainer, no optimizer state.
//
//     Net net;
//     skein::train::load_weights(*net, "runs/net");    // the newest whole checkpoint of that run
//     net->eval();

#include <skein/core/disk.hpp>
#include <skein/torch/tensor.hpp>
#include <skein/train/checkpoint.hpp>

#include <cstdint>
#include <string>

namespace skein::train {

/// What load_weights read.
struct loaded_weights {
    std::string path;       ///< the checkpoint
    std::uint64_t step = 0; ///< finished optimizer steps
};

/// Opens a run folder's newest whole checkpoint, or the checkpoint folder itself; every byte is verified,
/// nothing is changed on disk.
///   errors  not_found, or the newest one's corrupt or malformed when none is whole
[[nodiscard]] loaded_checkpoint open_checkpoint(disk& where, const std::string& path);

/// Fills the module's parameters and buffers from a checkpoint, whichever number of workers wrote it.
///   path    a run's folder or a checkpoint's
///   errors  those of open_checkpoint; not_found and mismatch name the tensor. Then the module may hold
///           some of the new values
loaded_weights load_weights(torch::nn::Module& module, const std::string& path);

} // namespace skein::train

#if SKEIN_HEADER_ONLY
#include <skein/train/detail/weights.ipp>
#endif
