// SPDX-License-Identifier: Apache-2.0
#pragma once
// A file of a folder that is read piece by piece for somebody else, by a path on which nothing is a
// link; it says when the file was not the same all the time.
//
//     const source_file from("/jobs/7", "runs/a/metrics.csv");   // blocks, as all of it does
//     const auto piece = from.read(0, 1 << 20);
//     if (from.has_changed()) ...

#include <skein/cluster/package.hpp>
#include <skein/core/bytes.hpp>
#include <skein/core/disk.hpp>
#include <skein/core/error.hpp>
#include <skein/core/posix_disk.hpp>
#include <skein/core/unique_fd.hpp>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

namespace skein::cluster::detail {

/// Opens what is at a path below a folder; no name on the way is followed if it is a link.
///   in     the folder; AT_FDCWD and an absolute path: from the root
///   flags  of the last one, beside O_CLOEXEC and O_NOFOLLOW
/// Nothing, with errno: it is not there, or a link.
[[nodiscard]] inline unique_fd open_below(int in, std::string_view path, int flags,
                                          unsigned mode = 0) {
    unique_fd at;
    for (;;) {
        const auto slash = path.find('/');
        const auto name = std::string(path.substr(0, slash));
        const int from = at ? at.get() : in;
        const bool is_last = slash == path.npos;
        unique_fd next(::openat(from, name.c_str(),
                                (is_last ? flags : O_RDONLY | O_DIRECTORY) | O_CLOEXEC | O_NOFOLLOW,
                                mode));
        if (is_last || !next) return next;
        at = std::move(next);
        path.remove_prefix(slash + 1);
    }
}

/// The same file, with the same content as far as its system says.
[[nodiscard]] inline bool is_same_file(const struct stat& a, const struct stat& b) noexcept {
    return a.st_ino == b.st_ino && a.st_dev == b.st_dev && a.st_size == b.st_size &&
           a.st_mtim.tv_sec == b.st_mtim.tv_sec && a.st_mtim.tv_nsec == b.st_mtim.tv_nsec &&
           a.st_ctim.tv_sec == b.st_ctim.tv_sec && a.st_ctim.tv_nsec == b.st_ctim.tv_nsec;
}

/// One file, open for reading. One thread at a time.
class source_file {
public:
    ///   path    relative to the folder, as of a package
    ///   errors  not_found, permission_denied, io; aborted: it is no file (any more)
    source_file(const std::string& folder, const std::string& path)
        : shown_(join_path(folder, path)) {
        const unique_fd in(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
        if (!in) throw errno_error(errno, "open", folder);
        file_ = open_below(in.get(), path, O_RDONLY | O_NONBLOCK);
        if (!file_) {
            if (errno == ELOOP || errno == ENXIO || errno == ENOTDIR || errno == ENOENT)
                throw changed();
            throw errno_error(errno, "read", shown_);
        }
        if (::fstat(file_.get(), &is_) != 0) throw errno_error(errno, "look at", shown_);
        if (!S_ISREG(is_.st_mode)) throw changed();
    }

    [[nodiscard]] std::uint64_t size() const noexcept {
        return static_cast<std::uint64_t>(is_.st_size);
    }
    [[nodiscard]] const struct stat& status() const noexcept { return is_; }
    /// A piece, shorter at the end of the file alone.
    ///   errors  aborted: it became shorter; io
    [[nodiscard]] byte_buffer read(std::uint64_t offset, std::size_t bytes) const {
        byte_buffer out(static_cast<std::size_t>(
            std::min<std::uint64_t>(bytes, size() - std::min(offset, size()))));
        for (std::size_t got = 0; got < out.size();) {
            const auto n = skein::detail::retry_eintr([&] {
                return ::pread(file_.get(), out.data() + got, out.size() - got,
                               static_cast<off_t>(offset + got));
            });
            if (n < 0) throw errno_error(errno, "read", shown_);
            if (n == 0) throw changed();
            got += static_cast<std::size_t>(n);
        }
        return out;
    }
    ///   errors  aborted: it is not the file any more that was opened, or has changed since
    void check_unchanged() const {
        struct stat now{};
        if (::fstat(file_.get(), &now) != 0) throw errno_error(errno, "look at", shown_);
        if (!is_same_file(is_, now)) throw changed();
    }

private:
    [[nodiscard]] error changed() const {
        return error(errc::aborted, fmt::format("{} has changed while it was read", shown_))
            .with_hint("wait until nobody writes there");
    }

    std::string shown_;
    unique_fd file_;
    struct stat is_{};
};

} // namespace skein::cluster::detail
