// SPDX-License-Identifier: Apache-2.0
#pragma once
// Waiting until a file descriptor can be read: pipes, pidfds, eventfds, whatever the kernel can
// poll.
//
//     auto ended = net::wait_readable(loop, child.pidfd());
//     co_await ended;

#include <skein/core/task.hpp>
#include <skein/net/real_loop.hpp>

namespace skein::net {

/// Suspends until fd is readable or its other end has gone; reads nothing.
///   fd      stays the caller's; must be open when this starts
///   errors  io (not a descriptor that can be polled), cancelled
[[nodiscard]] task<void> wait_readable(real_loop& on, int fd);

} // namespace skein::net

#if SKEIN_HEADER_ONLY
#include <skein/net/detail/readable_fd.ipp>
#endif
