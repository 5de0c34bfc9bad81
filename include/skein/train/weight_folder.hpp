// SPDX-License-Identifier: Apache-2.0
#pragma once
// Weights of a source as a folder that other programs read: safetensors, an index, a config.json.
//
//     posix_disk here;
//     const auto from = open_weights(here, "runs/gpt");
//     export_safetensors(*from, "out", {.max_shard = 5'000'000'000, .dtype = "BF16"});
//
// Tensors are written in blocks of a few MiB, of those that are turned round 64 MiB, so that memory
// does not grow with them. The folder gets its name when all of it is on disk. A module in memory
// is exported by <skein/train/export_weights.hpp>; here is what needs no LibTorch.

#include <skein/core/disk.hpp>
#include <skein/train/weight_map.hpp>
#include <skein/train/weight_source.hpp>

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

namespace detail {
/// One tensor that is turned round, at the end of a file, in blocks of about so many bytes.
void write_turned(file& out, const weight_source& from, const planned_tensor& t,
                  std::uint64_t block_bytes);
} // namespace detail

/// Writes the weights into a new folder.
///   errors  already_exists when there is something of that name; those of plan_export; not_supported
///           for a type; disk errors, after which nothing of the folder is left
exported_weights export_safetensors(const weight_source& from, const std::string& folder,
                                    const export_options& options = {});
/// Of what open_weights() takes: a run's folder, a checkpoint, a file.
exported_weights export_safetensors(const std::string& from, const std::string& folder,
                                    const export_options& options = {});

} // namespace skein::train

#if SKEIN_HEADER_ONLY
#include <skein/train/detail/weight_folder.ipp>
#endif
