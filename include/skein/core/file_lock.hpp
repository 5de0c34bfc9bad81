// SPDX-License-Identifier: Apache-2.0
#pragma once
// A lock of a whole file between processes (flock): held until its descriptor is closed, also by
// the kernel where its process ends. It is advisory: who does not ask is not held up.
//
//     if (try_lock(fd.get()) == file_lock::busy) ...        // another process has it

#include <skein/core/clock.hpp>
#include <skein/core/posix_disk.hpp>

#include <cerrno>
#include <string_view>

#include <poll.h>
#include <sys/file.h>
#include <unistd.h>

namespace skein {

/// Takes it or not, at once.
[[nodiscard]] inline file_lock try_lock(int fd) noexcept {
    if (detail::retry_eintr([&] { return ::flock(fd, LOCK_EX | LOCK_NB); }) == 0)
        return file_lock::held;
    return errno == EWOULDBLOCK ? file_lock::busy : file_lock::unsupported;
}

/// Tries it every 10 ms until `end`, of the system's clock. Blocks the thread.
[[nodiscard]] inline file_lock lock_until(int fd, time_point end) noexcept {
    for (;;) {
        const auto outcome = try_lock(fd);
        if (outcome != file_lock::busy || system_clock().now() >= end) return outcome;
        ::poll(nullptr, 0, 10);
    }
}

/// Writes whose lock it is into its file, for people; on a full disk they do without.
inline void sign_lock(int fd, std::string_view owner) noexcept {
    if (::ftruncate(fd, 0) == 0) (void)!::pwrite(fd, owner.data(), owner.size(), 0);
}

} // namespace skein
