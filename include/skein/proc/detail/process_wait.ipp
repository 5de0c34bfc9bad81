// SPDX-License-Identifier: Apache-2.0
#pragma once
// The body of proc/process_wait.hpp.

#include <skein/net/readable_fd.hpp>
#include <skein/net/real_loop.hpp>

namespace skein::proc {

SKEIN_INLINE task<exit_status> wait(net::real_loop& on, child_process& child) {
    while (!child.try_wait()) {
        auto ended = net::wait_readable(on, child.pidfd());
        co_await ended;
    }
    co_return *child.status();
}

} // namespace skein::proc
