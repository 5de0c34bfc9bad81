// SPDX-License-Identifier: Apache-2.0
#pragma once
// Files as a small interface, so that the code that writes checkpoints runs on a simulated disk
// too.
//
// Calls block and are meant for a thread that may wait; nothing here throws: a failing disk is a
// result. Durable replacement of a file is: write a temporary, sync it, rename it, sync the folder;
// replace() does just that.
//
//     auto done = disk.replace("run/manifest.json", bytes);
//     if (!done) return done.error();

#include <skein/core/bytes.hpp>
#include <skein/core/result.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace skein {

/// What open() expects of a file, and what may be done with it.
enum class open_mode : std::uint8_t {
    read,       ///< an existing file, for reading
    write,      ///< created or emptied, for writing (and reading back)
    append,     ///< created if missing, kept if not; write position at the end
    create_new, ///< as write, but errc::already_exists if there is one
};

/// What became of a try to lock a file.
enum class file_lock : std::uint8_t {
    held,
    busy,       ///< another process has it
    unsupported ///< the file system cannot lock (some NFS); errno says more
};

/// An open file. The destructor closes it; close() also tells whether that worked.
class file {
public:
    file() = default;
    file(const file&) = delete;
    file& operator=(const file&) = delete;
    virtual ~file() = default;

    /// Reads at an offset; gives fewer bytes than asked only at the end of the file.
    virtual result<std::size_t> read_at(std::uint64_t offset, mut_byte_span into) = 0;
    /// Writes all bytes at an offset, extending the file where needed; disk_full if they do not fit
    /// (then an unknown part of them is written).
    virtual result<void> write_at(std::uint64_t offset, byte_span bytes) = 0;
    /// Writes all bytes at the end.
    virtual result<void> append(byte_span bytes) = 0;
    virtual result<std::uint64_t> size() = 0;
    /// Cuts or extends (with zeros) to `bytes`.
    virtual result<void> truncate(std::uint64_t bytes) = 0;
    /// Returns when content and size have reached the medium.
    virtual result<void> sync() = 0;
    /// Closes; later calls fail with errc::closed. Closing twice is fine.
    virtual result<void> close() = 0;
    /// Takes its lock (flock) or not, at once; it is held until the file is closed.
    virtual file_lock try_lock() { return file_lock::unsupported; }
    /// Whether a path still names this file: nobody has put another one there.
    virtual bool is_at(const std::string& path) {
        (void)path;
        return true;
    }
    /// The system's, still owned by this object; -1: it has none in this process.
    [[nodiscard]] virtual int descriptor() const noexcept { return -1; }
};

/// One name in a folder.
struct dir_entry {
    std::string name; ///< without the folder
    bool is_directory = false;
    std::uint64_t bytes = 0; ///< 0 for folders
};

/// A tree of files. Thread-safe as far as different files are concerned.
/// Codes: not_found, already_exists, permission_denied, disk_full, io; texts name the path.
class disk {
public:
    virtual ~disk() = default;

    virtual result<std::unique_ptr<file>> open(const std::string& path, open_mode mode) = 0;
    /// Replaces `to` at once, if it is there. Durable after sync_dir of the folder.
    virtual result<void> rename(const std::string& from, const std::string& to) = 0;
    /// Makes creations, renames and removals inside the folder durable.
    virtual result<void> sync_dir(const std::string& path) = 0;
    /// What is in a folder, ordered by name.
    virtual result<std::vector<dir_entry>> list(const std::string& path) = 0;
    /// Removes a file or an empty folder; not_found if there is none.
    virtual result<void> remove(const std::string& path) = 0;
    /// Creates a folder and those above it; fine if it is there already.
    virtual result<void> make_dirs(const std::string& path) = 0;
    /// Bytes an ordinary user may still write where `path` is.
    virtual result<std::uint64_t> free_space(const std::string& path) = 0;
    /// Size and kind of a path; not_found if there is none.
    virtual result<dir_entry> status(const std::string& path) = 0;

    /// The whole content; too_large if it has more than max_bytes.
    result<byte_buffer> read_whole(const std::string& path, std::uint64_t max_bytes = 1u << 30);
    /// Writes a file from the start and syncs it; a crash may leave a part of it.
    result<void> write_whole(const std::string& path, byte_span bytes);
    /// Replaces a file durably: after a crash either the old or the new content is there.
    result<void> replace(const std::string& path, byte_span bytes);
    /// Removes a folder with all that is in it, or a file; fine if there is nothing. A link is
    /// removed, not what it points at.
    result<void> remove_tree(const std::string& path);
};

/// The folder part of a path ("." for a bare name, "/" for the root).
[[nodiscard]] inline std::string parent_path(const std::string& path) {
    const auto slash = path.find_last_of('/');
    if (slash == std::string::npos) return ".";
    return slash == 0 ? "/" : path.substr(0, slash);
}

/// folder + "/" + name.
[[nodiscard]] inline std::string join_path(const std::string& folder, std::string_view name) {
    std::string path = folder;
    if (!path.empty() && path.back() != '/') path += '/';
    return path.append(name);
}

} // namespace skein

#if SKEIN_HEADER_ONLY
#include <skein/core/detail/disk.ipp>
#endif
