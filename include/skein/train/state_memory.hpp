// SPDX-License-Identifier: Apache-2.0
#pragma once
// Memory for optimizer states that the kernel may write to a disk when memory is short.
//
// A file in a folder of the user's choice, mapped and without a name from the start: nothing is
// left behind however the program ends. On a disk the pages of a state that is not in use can leave
// memory; on tmpfs they leave it only where there is swap.

#include <skein/torch/tensor.hpp>

#include <cstdint>
#include <string>

namespace skein::train {

/// Zeroed float32 storage in a file of the folder, given back when the last view is gone. Its
/// blocks are reserved now: a disk that fills up later cannot end the program.
///   errors  usage when the folder is none or not writable; exhausted, with what is free, when it
///           is too small
[[nodiscard]] at::Tensor make_file_buffer(const std::string& folder, std::int64_t elements);

/// The same in the folder, or ordinary memory, of a device, too, when that is empty.
[[nodiscard]] at::Tensor make_state_buffer(const std::string& folder, std::int64_t elements,
                                           at::Device where = at::kCPU);

} // namespace skein::train

#if SKEIN_HEADER_ONLY
#include <skein/train/detail/state_memory.ipp>
#endif
