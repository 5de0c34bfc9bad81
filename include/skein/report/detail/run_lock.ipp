// SPDX-License-Identifier: Apache-2.0
#pragma once
// One run folder, one run: a lock on <folder>/.lock that the kernel releases when its process ends,
// however it ends. The file itself stays; its text tells who holds it.

#include <skein/core/clock.hpp>
#include <skein/core/file_beside.hpp>
#include <skein/core/file_lock.hpp>
#include <skein/core/posix_disk.hpp>
#include <skein/core/random.hpp>
#include <skein/core/unique_fd.hpp>
#include <skein/proc/process.hpp>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/core.h>

namespace skein::report::detail {

enum class lock_outcome : std::uint8_t {
    held,        ///< ours while fd lives
    busy,        ///< another process has it
    unsupported, ///< the file system cannot lock (some NFS)
    failed       ///< the file cannot be opened; `number` is the errno
};

struct run_lock {
    lock_outcome outcome = lock_outcome::failed;
    unique_fd fd;
    int number = 0;
    bool made = false; ///< the lock's file was not there before
};

/// "pid 4711 on node-3"; the text of a lock's file.
[[nodiscard]] SKEIN_INLINE std::string lock_owner() {
    return fmt::format("pid {} on {}", ::getpid(), proc::host_name());
}

/// Who wrote the file of a lock last.
[[nodiscard]] SKEIN_INLINE std::string lock_owner_of(const std::string& folder) {
    posix_disk disk(link_policy::refuse);
    const auto bytes = disk.read_whole(join_path(folder, ".lock"), 4096);
    if (!bytes || bytes->empty()) return "another process";
    return skein::to_string(byte_span(*bytes));
}

/// Whether a lock's file still stands where it was opened: nobody has taken the folder away.
[[nodiscard]] SKEIN_INLINE bool is_lock_of(int fd, const std::string& folder) {
    struct stat held{}, there{};
    return ::fstat(fd, &held) == 0 && ::stat(join_path(folder, ".lock").c_str(), &there) == 0 &&
           held.st_ino == there.st_ino && held.st_dev == there.st_dev;
}

/// A lock in the place of one whose holder does not let go: a process that stands still, or on a
/// host that is cut off, would keep it for good. What the holder sees by is_lock_of().
[[nodiscard]] SKEIN_INLINE run_lock take_lock(const std::string& folder) {
    const auto path = join_path(folder, ".lock");
    file_beside fresh(fmt::format("{}-{:016x}", path, system_random().next()), 0666);
    run_lock out;
    if (fresh && try_lock(fresh.get()) == file_lock::held) {
        sign_lock(fresh.get(), lock_owner());
        if (fresh.take_place(path)) out.outcome = lock_outcome::held;
    }
    out.number = out.outcome == lock_outcome::held ? 0 : errno;
    out.fd = fresh.release();
    return out;
}

/// Tries to lock a folder; a busy one is tried again until `patience` is over, for a run that was
/// killed a moment ago and whose last process is on its way out.
[[nodiscard]] SKEIN_INLINE run_lock lock_run(const std::string& folder, time_span patience) {
    const auto path = join_path(folder, ".lock");
    const auto end = system_clock().now() + patience;
    run_lock out;
    // Exclusive creation first: where locks do not work it is what decides between two fresh runs.
    out.fd.reset(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666));
    out.made = bool(out.fd);
    if (!out.fd && errno == EEXIST)
        out.fd.reset(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    if (!out.fd) {
        out.number = errno;
        return out;
    }
    // Blocks: rank 0 has no loop here, and nothing else to do.
    for (;;) {
        const auto taken = lock_until(out.fd.get(), end);
        if (taken != file_lock::held) {
            out.outcome = taken == file_lock::busy ? lock_outcome::busy : lock_outcome::unsupported;
            return out;
        }
        if (is_lock_of(out.fd.get(), folder)) break;
        // Taken by another process meanwhile, which has put its own there.
        out.fd.reset(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666));
        if (out.fd) continue;
        out.number = errno;
        return out;
    }
    out.outcome = lock_outcome::held;
    sign_lock(out.fd.get(), lock_owner());
    return out;
}

} // namespace skein::report::detail
