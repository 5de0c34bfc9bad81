// SPDX-License-Identifier: Apache-2.0
#pragma once
// Everything that is damaged in a checkpoint, not only what is met first.
//
//     posix_disk here;
//     const auto seen = verify_checkpoint(here, "runs/gpt/checkpoints/step-00000600");
//     for (const auto& d : seen.damage) fmt::print("{}: {}\n", d.file, d.text);
//
// The manifest, size and every chunk of every shard, and whether headers and manifest agree. A
// training that resumes stops at the first damage and takes the checkpoint before; this is for
// people who want to know what is left.

#include <skein/core/disk.hpp>
#include <skein/train/manifest.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace skein::train {

/// One thing that is wrong.
struct damaged_part {
    std::string file{};
    std::optional<std::uint64_t> chunk{}; ///< whose checksum does not fit
    std::string text{};
};

/// What was looked at, and what is wrong with it.
struct verified_checkpoint {
    std::optional<checkpoint_manifest> manifest{}; ///< nothing when it cannot be read
    std::vector<damaged_part> damage{};            ///< in the order of the files
    std::uint64_t chunks = 0;                      ///< compared
    std::uint64_t bytes = 0;                       ///< of shards, read

    [[nodiscard]] bool is_whole() const noexcept { return damage.empty(); }
};

/// Reads every byte of a checkpoint's folder and changes nothing. What cannot be read is damage, too.
[[nodiscard]] verified_checkpoint verify_checkpoint(disk& where, const std::string& folder);

} // namespace skein::train

#if SKEIN_HEADER_ONLY
#include <skein/train/detail/verify_checkpoint.ipp>
#endif
