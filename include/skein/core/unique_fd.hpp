// SPDX-License-Identifier: Apache-2.0
#pragma once
// A file descriptor with one owner, and the pipe that is most often behind it.
//
//     auto [to_read, to_write] = skein::make_pipe();

#include <skein/core/error.hpp>

#include <cerrno>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include <fcntl.h>
#include <unistd.h>

namespace skein {

/// Closes its file descriptor in the destructor; -1 is none.
class unique_fd {
public:
    explicit unique_fd(int fd = -1) noexcept : fd_(fd) {}
    unique_fd(unique_fd&& other) noexcept : fd_(other.release()) {}
    unique_fd& operator=(unique_fd&& other) noexcept {
        reset(other.release());
        return *this;
    }
    ~unique_fd() { reset(); }

    [[nodiscard]] int get() const noexcept { return fd_; }
    [[nodiscard]] explicit operator bool() const noexcept { return fd_ >= 0; }
    /// The caller owns it from here on.
    [[nodiscard]] int release() noexcept { return std::exchange(fd_, -1); }
    /// Closes what it has and takes fd.
    void reset(int fd = -1) noexcept {
        const int old = std::exchange(fd_, fd);
        if (old >= 0) ::close(old);
    }

private:
    int fd_;
};

/// A close-on-exec, non-blocking pipe; first is the end to read. Throws errc::io when the process
/// has no descriptors left.
[[nodiscard]] inline std::pair<unique_fd, unique_fd> make_pipe() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0)
        throw error(errc::io, fmt::format("pipe failed: {}", std::strerror(errno)));
    return {unique_fd(ends[0]), unique_fd(ends[1])};
}

} // namespace skein
