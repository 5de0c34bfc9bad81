// SPDX-License-Identifier: Apache-2.0
#pragma once
// A trained model's weights alone, for using it: no trainer, no optimizer state.
//
//     Net net;
//     skein::train::load_weights(*net, "runs/net");    // the newest whole checkpoint of that run
//     net->eval();
//
// Of others: a safetensors file or a folder of Hugging Face's, with a map where names or layouts
// are not the module's own.
//
//     skein::models::GPT2 net(options);
//     skein::train::load_weights(*net, "hf:models/gpt2", skein::models::maps::gpt2());
//
// Of a model that trainer.build() has cut up, each rank reads the rows that it owns:
// trainer.build(make, "hf:models/gpt2", maps::gpt2()) does both.

#include <skein/core/disk.hpp>
#include <skein/torch/tensor.hpp>
#include <skein/train/context.hpp>
#include <skein/train/weight_map.hpp>
#include <skein/train/weight_source.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace skein::train {

/// How a folder's tensors must fit the module, and which of its weights are wanted.
struct weights_options {
    bool strict = true; ///< refuse a folder with tensors that the module has not
    /// The averages of the weights in place of the weights; not_found when the run kept none.
    bool average = false;
};

/// What load_weights read.
struct loaded_weights {
    std::string path;       ///< the checkpoint, folder or file
    std::uint64_t step = 0; ///< finished optimizer steps; 0 for what is no checkpoint
    /// Why newer checkpoints of the run were passed over; each is also a warning in the log.
    std::vector<std::string> passed_over{};
    /// Empty, or: the numbers of the checkpoint (val_loss and the like) were measured with other
    /// weights, its averages in place of the weights or the other way round, and how to load those;
    /// also a warning in the log.
    std::string other_numbers{};
};

/// Fills the module's parameters and buffers from weights on disk, whichever number of workers
/// wrote them. Numbers of other types of floating point are cast. A tensor that the module has
/// registered twice is read once; a folder that has it twice with other values is refused.
///   from    a run's folder or a checkpoint's, or what else open_weights() takes: "hf:DIR"
///   map     how the folder's tensors become the module's; empty: they have the same names
///   errors  those of open_weights; mismatch or not_found for all that is missing, additional (when
///           strict) or of another type or shape, in one message; until then nothing is written. A
///           disk that fails later leaves some of the new values
loaded_weights load_weights(torch::nn::Module& module, const std::string& from,
                            const weight_map& map, weights_options options = {});
/// The same from a checkpoint, or under the module's own names.
loaded_weights load_weights(torch::nn::Module& module, const std::string& from,
                            weights_options options = {});
/// The same from a source that is open.
void load_weights(torch::nn::Module& module, const weight_source& from, const weight_map& map,
                  bool strict = true);

namespace detail {
/// load_weights() on all ranks: a checkpoint is verified by the first one, and all read that one.
/// Collective.
///   errors  mismatch when the ranks found other tensors, too
void load_on_all(const context& ctx, torch::nn::Module& module, const std::string& from,
                 const weight_map& map, weights_options options);
void load_on_all(const context& ctx, torch::nn::Module& module, const weight_source& from,
                 const weight_map& map, bool strict);
} // namespace detail

} // namespace skein::train

#if SKEIN_HEADER_ONLY
#include <skein/train/detail/weights.ipp>
#endif
