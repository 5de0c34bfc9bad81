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
#include <vector>

namespace skein::train {

/// How a checkpoint's tensors must fit the module, and which of its weights are wanted.
struct weights_options {
    bool strict = true; ///< refuse a checkpoint with tensors that the module has not
    /// The averages of the weights in place of the weights; not_found when the run kept none.
    bool average = false;
};

/// What load_weights read.
struct loaded_weights {
    std::string path;       ///< the checkpoint
    std::uint64_t step = 0; ///< finished optimizer steps
    /// Why newer checkpoints of the run were passed over; each is also a warning in the log.
    std::vector<std::string> passed_over{};
    /// Empty, or: the numbers of the checkpoint (val_loss and the like) were measured with other
    /// weights, its averages in place of the weights or the other way round, and how to load those;
    /// also a warning in the log.
    std::string other_numbers{};
};

/// Opens a run folder's newest whole checkpoint, or the checkpoint folder itself; every byte is
/// verified, nothing is changed on disk. Damaged newer ones are passed over with a warning in the
/// log.
///   passed_over  when given, gets a line per checkpoint that was
///   errors  not_found, or the newest one's corrupt or malformed when none is whole
[[nodiscard]] loaded_checkpoint open_checkpoint(disk& where, const std::string& path,
                                                std::vector<std::string>* passed_over = nullptr);

/// Fills the module's parameters and buffers from a checkpoint, whichever number of workers wrote
/// it.
///   path    a run's folder or a checkpoint's
///   errors  those of open_checkpoint; mismatch names tensors that the module has not (unless
///           strict is false); not_found and mismatch name a tensor that is missing or of another
///           shape: then the module may hold some of the new values
loaded_weights load_weights(torch::nn::Module& module, const std::string& path,
                            weights_options options = {});

} // namespace skein::train

#if SKEIN_HEADER_ONLY
#include <skein/train/detail/weights.ipp>
#endif
