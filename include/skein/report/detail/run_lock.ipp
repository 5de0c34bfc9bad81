// SPDX-License-Identifier: Apache-2.0
#pragma once
// One run folder, one run: a lock on <folder>/.lock that the kernel releases when its process ends,
// however it ends. The file itself stays; its text tells who holds it.

#include <skein/core/clock.hpp>
#include <skein/core/disk.hpp>
#include <skein/core/error.hpp>
#include <skein/core/posix_disk.hpp>
#include <skein/core/random.hpp>
#include <skein/proc/process.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <poll.h>
#include <unistd.h>

#include <fmt/core.h>

namespace skein::report::detail {

enum class lock_outcome : std::uint8_t {
    held,        ///< ours while the file is open
    busy,        ///< another process has it
    unsupported, ///< the file system cannot lock (some NFS)
    failed       ///< the file cannot be opened; `why` says more
};

struct run_lock {
    lock_outcome outcome = lock_outcome::failed;
    std::unique_ptr<file> held{};
    std::optional<error> why{};
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
[[nodiscard]] SKEIN_INLINE bool is_lock_of(file& held, const std::string& folder) {
    return held.is_at(join_path(folder, ".lock"));
}

/// For people; on a full disk they do without.
SKEIN_INLINE void sign(file& lock) {
    const auto owner = lock_owner();
    if (lock.truncate(0)) (void)lock.write_at(0, as_bytes(std::string_view(owner)));
}

/// A lock in the place of one whose holder does not let go: a process that stands still, or on a
/// host that is cut off, would keep it for good. What the holder sees by is_lock_of().
[[nodiscard]] SKEIN_INLINE run_lock take_lock(const std::string& folder) {
    posix_disk disk(link_policy::refuse);
    const auto path = join_path(folder, ".lock");
    const auto fresh = fmt::format("{}-{:016x}", path, system_random().next());
    run_lock out;
    auto opened = disk.open(fresh, open_mode::create_new);
    if (!opened) {
        out.why = opened.error();
        return out;
    }
    if ((*opened)->try_lock() == file_lock::held) {
        sign(**opened);
        if (const auto placed = disk.rename(fresh, path))
            out.outcome = lock_outcome::held;
        else
            out.why = placed.error();
    }
    if (out.outcome != lock_outcome::held) (void)disk.remove(fresh);
    out.held = std::move(*opened);
    return out;
}

/// Tries it every 10 ms until `end`. Blocks: rank 0 has no loop here, and nothing else to do.
[[nodiscard]] SKEIN_INLINE file_lock lock_until(file& which, time_point end) {
    for (;;) {
        const auto outcome = which.try_lock();
        if (outcome != file_lock::busy || system_clock().now() >= end) return outcome;
        ::poll(nullptr, 0, 10);
    }
}

/// Tries to lock a folder; a busy one is tried again until `patience` is over, for a run that was
/// killed a moment ago and whose last process is on its way out.
[[nodiscard]] SKEIN_INLINE run_lock lock_run(const std::string& folder, time_span patience) {
    posix_disk disk(link_policy::refuse);
    const auto path = join_path(folder, ".lock");
    const auto end = system_clock().now() + patience;
    run_lock out;
    // Exclusive creation first: where locks do not work it is what decides between two fresh runs.
    auto opened = disk.open(path, open_mode::create_new);
    out.made = opened.has_value();
    if (!opened && opened.error().code() == errc::already_exists)
        opened = disk.open(path, open_mode::append);
    for (;;) {
        if (!opened) {
            out.why = opened.error();
            return out;
        }
        out.held = std::move(*opened);
        const auto taken = lock_until(*out.held, end);
        if (taken != file_lock::held) {
            out.outcome = taken == file_lock::busy ? lock_outcome::busy : lock_outcome::unsupported;
            return out;
        }
        if (is_lock_of(*out.held, folder)) break;
        // Taken by another process meanwhile, which has put its own there.
        opened = disk.open(path, open_mode::append);
    }
    out.outcome = lock_outcome::held;
    sign(*out.held);
    return out;
}

} // namespace skein::report::detail
