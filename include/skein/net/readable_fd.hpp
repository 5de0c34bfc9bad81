// SPDX-License-Identifier: Apache-2.0
#pragma once
// Waiting until a file descriptor can be read: pipes, pidfds, eventfds, whatever the kernel can poll.
//
//     auto ended = net::wait_readable(loop, child.pidfd());
//     co_await ended;

#include <skein/core/error.hpp>
#include <skein/core/task.hpp>
#include <skein/net/asio.hpp>
#include <skein/net/real_loop.hpp>
#include <skein/net/system_error.hpp>
#include <skein/net/use_task.hpp>

#include <cerrno>
#include <system_error>

#include <fcntl.h>

namespace skein::net {

/// Suspends until fd is readable or its other end has gone; reads nothing.
///   fd      stays the caller's; must be open when this starts
///   errors  io (not a descriptor that can be polled), cancelled
[[nodiscard]] inline task<void> wait_readable(real_loop& on, int fd) {
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
