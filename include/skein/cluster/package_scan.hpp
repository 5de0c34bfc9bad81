// SPDX-License-Identifier: Apache-2.0
#pragma once
// A folder of this host as a package: which of its files go along, and their digests.
//
//     scan_options how;
//     how.always = {"build/train"};                 // named by the command, though ignored
//     const package_manifest files = scan_folder(".", how);
//     // later, a piece of what the other side lacks
//     const byte_buffer piece = read_package_file(".", files.entries[3], 0, 1 << 20);
//
// What goes along: in the work tree of a git repository all that git does not ignore (tracked or
// not, changes included), elsewhere everything. `.git` stays out. A file `.skeinignore` in the
// folder, with the syntax of a .gitignore, takes out more, tracked files too. Empty folders go
// along, relative links as links; a link out of the folder, a device, a pipe and a socket are
// refused by name.
//
// Calls block for as long as hashing takes (1 GiB: seconds): run them on a thread that may wait.

#include <skein/core/config.hpp>
#include <skein/cluster/package.hpp>
#include <skein/core/bytes.hpp>
#include <skein/core/sha256.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include <sys/stat.h>

namespace skein::cluster {

/// How far a scan is.
struct scan_progress {
    std::string path; ///< the file that is read
    std::uint64_t bytes = 0, all_bytes = 0;
    std::size_t files = 0, all_files = 0; ///< read, of all; the second is 0 while they are listed
};

/// How a folder becomes a package.
struct scan_options {
    /// Paths relative to the folder that go along though ignored, with all that is in them; a link
    /// among them takes along what it points at.
    std::vector<std::string> always{};
    package_bounds bounds{};
    /// Asked to stop, it ends with errc::cancelled after a piece of a MiB.
    std::stop_token stop{};
    /// Asked of each file before it is read: its digest, if that is known; then it is not read. Zeros
    /// stand for one that is read when it is sent, see send_folder().
    std::function<std::optional<sha256_digest>(const struct stat& is)> known{};
    /// Told of each file that was read; `read_at`: before that, in nanoseconds since 1970.
    std::function<void(const struct stat& is, const sha256_digest& digest, std::int64_t read_at)>
        learned{};
    /// Told after each piece how much of the folder has been hashed, by the thread that scans; and
    /// of each 1,000 files how many were found before that.
    std::function<void(const scan_progress&)> progress{};
};

/// Lists the folder and hashes its files.
///   errors  not_found: no such folder, or a path of `always`; permission_denied: a file that
///           cannot be read; too_large: the text names the ten largest; not_supported: a link out
///           of the folder, a device, a pipe, a socket; aborted: a file has changed meanwhile;
///           io: git says no; cancelled
[[nodiscard]] package_manifest scan_folder(const std::string& folder, const scan_options& how = {});

/// A piece of a file of the package; shorter than `bytes` at its end alone.
///   folder  the one that was scanned
///   errors  aborted: the file is gone or has another size than then (other bytes of that size are
///           found by who compares digests); permission_denied, io
[[nodiscard]] byte_buffer read_package_file(const std::string& folder, const package_entry& which,
                                            std::uint64_t offset, std::size_t bytes);

} // namespace skein::cluster

#if SKEIN_HEADER_ONLY
#include <skein/cluster/detail/package_scan.ipp>
#endif
