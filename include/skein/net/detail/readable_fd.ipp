// SPDX-License-Identifier: Apache-2.0
#pragma once
// A descriptor on Asio's poller for the time of one wait.

#include <skein/core/error.hpp>
#include <skein/net/asio.hpp>
#include <skein/net/system_error.hpp>
#include <skein/net/use_task.hpp>

#include <cerrno>
#include <system_error>

#include <fmt/core.h>
#include <fcntl.h>

namespace skein::net {

SKEIN_INLINE task<void> wait_readable(real_loop& on, int fd) {
    // A copy: Asio wants to own what it waits for.
    const int copy = ::fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (copy < 0) {
        throw code_error(std::error_code(errno, std::system_category()),
                         fmt::format("cannot wait for file descriptor {}", fd));
    }
    asio::posix::stream_descriptor watched(on.context(), copy);
    auto readable = watched.async_wait(asio::posix::stream_descriptor::wait_read, use_task);
    co_await readable;
}

} // namespace skein::net
