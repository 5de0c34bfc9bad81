// SPDX-License-Identifier: Apache-2.0
#pragma once
// The limit on the size of the files that this process writes (`ulimit -f`, limits of batch
// systems). Whoever writes past it, or makes more shared memory than that, gets SIGXFSZ, which ends
// a process without a word.
//
//     skein::outlive_file_limit();   // writing past the limit is an error then; skein::run does it
//     fmt::print("{}\n", errno_text(EFBIG));  // "file too large (the limit ... is 8192 bytes ..."

#include <skein/core/config.hpp>

#include <cstdint>
#include <optional>
#include <string>

namespace skein {

/// The most bytes that a file may have which this process writes; empty: there is no limit.
[[nodiscard]] std::optional<std::uint64_t> file_size_limit() noexcept;

/// Writing past the limit fails with EFBIG from now on, in this process alone: what it starts gets
/// the default back. Where the program has said itself what SIGXFSZ is to do, that stays. Any
/// thread, any number of times.
void outlive_file_limit() noexcept;

/// Whether that is the handler of outlive_file_limit().
[[nodiscard]] bool is_file_limit_outlived(void (*handler)(int)) noexcept;

/// What errno says, in lower case; of EFBIG with the limit, where there is one.
[[nodiscard]] std::string errno_text(int number);

} // namespace skein

#if SKEIN_HEADER_ONLY
#include <skein/core/detail/file_limit.ipp>
#endif
