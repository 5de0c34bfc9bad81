// SPDX-License-Identifier: Apache-2.0
#pragma once
// A new file that is written beside the place of another and takes that place at once when it is
// whole: who reads the place sees the old content or the new one, never a part.
//
// Not durable by itself: after a power failure neither may be there. disk::replace() of
// core/disk.hpp does the same with fsync, on any disk. Nothing here throws; errno says why a
// function gave false.
//
//     file_beside fresh(path + ".new", 0600, left_over::removed);
//     const bool done = fresh && fresh.append(bytes) && fresh.take_place(path);

#include <skein/core/bytes.hpp>
#include <skein/core/posix_disk.hpp>
#include <skein/core/unique_fd.hpp>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

namespace skein {

/// A file that has the new file's name already, for a process that wrote it was killed.
enum class left_over : std::uint8_t {
    refused, ///< nothing is made: EEXIST
    removed, ///< only where no other process can be writing it now
};

/// Removes what it has made, unless that got to its place.
class file_beside {
public:
    /// A link in the place of the new file is not followed. `mode` is cut by the umask.
    file_beside(std::string path, unsigned mode, left_over old = left_over::refused)
        : path_(std::move(path)) {
        if (old == left_over::removed) (void)::unlink(path_.c_str());
        file_.reset(
            ::open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode));
        is_beside_ = bool(file_);
    }
    file_beside(const file_beside&) = delete;
    file_beside& operator=(const file_beside&) = delete;
    ~file_beside() {
        if (is_beside_) (void)::unlink(path_.c_str());
    }

    /// The file is there.
    [[nodiscard]] explicit operator bool() const noexcept { return bool(file_); }
    [[nodiscard]] int get() const noexcept { return file_.get(); }
    [[nodiscard]] const std::string& path() const noexcept { return path_; }

    /// Writes all bytes at the end. False: an unknown part of them is written.
    [[nodiscard]] bool append(byte_span bytes) noexcept {
        while (!bytes.empty()) {
            const auto written = detail::retry_eintr(
                [&] { return ::write(file_.get(), bytes.data(), bytes.size()); });
            if (written <= 0) return false;
            bytes = bytes.subspan(static_cast<std::size_t>(written));
        }
        return true;
    }
    /// Replaces what is at that path, in the same file system.
    [[nodiscard]] bool take_place(const std::string& of) noexcept {
        if (::rename(path_.c_str(), of.c_str()) != 0) return false;
        is_beside_ = false;
        return true;
    }
    /// The file stays open, as the caller's, also when this is destroyed.
    [[nodiscard]] unique_fd release() noexcept { return std::move(file_); }

private:
    std::string path_;
    unique_fd file_;
    bool is_beside_ = false;
};

} // namespace skein
