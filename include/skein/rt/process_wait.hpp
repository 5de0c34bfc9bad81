// SPDX-License-Identifier: Apache-2.0
#pragma once
// Waiting for a child process on a real loop, without a thread and without SIGCHLD.
//
//     auto ended = rt::wait(loop, child);
//     rt::exit_status status = co_await ended;

#include <skein/core/task.hpp>
#include <skein/rt/process.hpp>

namespace skein::net {
class real_loop;
}

namespace skein::rt {

/// Suspends until the child has ended; reaps it.
///   child   must outlive the task
///   errors  cancelled: the child is not touched, wait again later
[[nodiscard]] task<exit_status> wait(net::real_loop& on, child_process& child);

} // namespace skein::rt

#if SKEIN_HEADER_ONLY
#include <skein/rt/detail/process_wait.ipp>
#endif
