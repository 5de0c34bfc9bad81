// SPDX-License-Identifier: Apache-2.0
#pragma once
// The child's side of proc/children.hpp: what a process was started with.
//
//     if (proc::started_as("worker")) {
//         proc::boot mine = *proc::take_boot("worker");
//         auto order = wire::decode<my_order>(mine.message);
//     }
//
// The message comes through an inherited pipe, so that it is seen neither in `ps` nor in
// /proc/PID/environ. At the first question the variables that name the inherited files leave the
// environment, and the files become close-on-exec: a program that this process starts is no child
// of ours by mistake, and cannot write into its pipes.

#include <skein/core/bytes.hpp>
#include <skein/core/unique_fd.hpp>
#include <skein/proc/shared_memory.hpp>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace skein::proc {

/// The variable that names the pipe with the boot message.
inline constexpr const char* boot_variable = "SKEIN_BOOT_FD";

/// What the parent gave this process.
struct boot {
    std::string role, name; ///< those of child_options
    byte_buffer message;
    unique_fd socket;             ///< connected with the parent; none if it did not want one
    shared_memory memory;         ///< what the parent has given
    std::vector<unique_fd> files; ///< those of child_options
};

/// True if children started this process in that role; also if what it was started with cannot be
/// read: take_boot() says so. Stays true. Ask first thing in main, before there are threads.
[[nodiscard]] bool started_as(std::string_view role) noexcept;

/// The boot message of this process, once; nothing if it was not started in that role, or when it
/// has been taken.
///   errors  malformed: something else is in the place of the message
[[nodiscard]] std::optional<boot> take_boot(std::string_view role);

} // namespace skein::proc

#if SKEIN_HEADER_ONLY
#include <skein/proc/detail/boot.ipp>
#endif
