// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a run computes on: run_config::device, and what this process has for it.
//
// Never run on a GPU: no machine that tests this has one. docs/gpu.md says what has run where.
//
//     const device_choice chosen = choose_device("automatic", survey_devices(), ctx.local_size());
//     fmt::print("{}: {}\n", dist::to_string(chosen.where), chosen.why);

#include <skein/dist/buffer.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace skein::train {

/// What this process has, and lacks, for training on a device.
struct device_survey {
    /// Something that is missing.
    struct lack {
        std::string what; ///< with what was looked for, and what was found
        std::string hint; ///< what to do
    };
    int devices = 0; ///< of CUDA, that this process sees
    std::vector<lack> lacking{};
};

/// Where it looks. The names are as dlopen takes them.
struct device_names {
    std::vector<std::string> runtime; ///< of CUDA
    std::string libtorch; ///< LibTorch's half for devices, which is loaded with a program
};
[[nodiscard]] device_names usual_device_names();

/// Looks for CUDA's runtime, its driver, devices, and LibTorch's half for them. Nothing is put on a
/// device, and LibTorch is not loaded.
[[nodiscard]] device_survey survey_devices(const device_names& names = usual_device_names());

/// What a run computes on.
struct device_choice {
    dist::device where{}; ///< of local rank 0
    std::string why;      ///< in words
};

/// "cpu", "cuda", or "automatic": a device for each of so many ranks of a host if there is one.
///   may_share  ranks may have a device together: the communicator is "host"
///   errors     usage: no such kind; "cuda" where something is missing, with what was looked for and
///              what to do; or where there are fewer devices than ranks that share none
[[nodiscard]] device_choice choose_device(std::string_view asked, const device_survey& there,
                                          int local_ranks, bool may_share = false);

/// The first of the `each` devices of a rank; beyond the last one it begins anew.
[[nodiscard]] int device_of_rank(int local_rank, int each, int devices) noexcept;

/// Throws errc::usage when `asked` is none of the three.
void require_device_kind(std::string_view asked);

} // namespace skein::train

#if SKEIN_HEADER_ONLY
#include <skein/train/detail/device.ipp>
#endif
