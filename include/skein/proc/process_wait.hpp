// SPDX-License-Identifier: Apache-2.0
#pragma once
// Waiting for a child process on a real loop, without a thread and without SIGCHLD.
//
//     auto ended = proc::wait(loop, child);
//     proc::exit_status status = co_await ended;

#include <skein/core/task.hpp>
#include <skein/proc/process.hpp>

namespace skein::net {
class real_loop;
}

namespace skein::proc {

/// Suspends until the child has ended; reaps it.
///   child   must outlive the task
///   errors  cancelled: the child is not touched, wait again later
[[nodiscard]] task<exit_status> wait(net::real_loop& on, child_process& child);

} // namespace skein::proc

#if SKEIN_HEADER_ONLY
#include <skein/proc/detail/process_wait.ipp>
#endif
