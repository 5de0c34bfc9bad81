// SPDX-License-Identifier: Apache-2.0
#pragma once
// The body of program/run_options.hpp.

#include <skein/core/file_limit.hpp>
#include <skein/proc/boot.hpp>
#include <skein/proc/process.hpp>
#include <skein/proc/standard_files.hpp>
#include <skein/program/cluster_roles.hpp>
#include <skein/rt/runtime.hpp>
#include <skein/spmd/rank_entry.hpp>

#include <atomic>
#include <cstdlib>

#include <unistd.h>

namespace skein {

namespace program::detail {

/// An agent has started this process to keep a namespace; what follows run() is the driver's, as in
/// workers.
[[noreturn]] SKEIN_INLINE void live_as_space_server() {
    static constinit std::atomic_flag taken = ATOMIC_FLAG_INIT;
    while (taken.test_and_set()) ::pause();
    const auto* const roles = roles_of_program();
    if (roles == nullptr) {
        (void)proc::leave_last_words(
            "not supported: this program was compiled without the cluster");
        std::exit(exit_code::failed);
    }
    std::exit(roles->keep());
}

} // namespace program::detail

SKEIN_INLINE void serve_if_worker() {
    proc::open_standard_files();
    outlive_file_limit();
    // A task of a worker may be a driver of its own: it has a runtime.
    if (program::is_worker() && rt::runtime::try_current() == nullptr)
        program::detail::live_as_worker();
    if (proc::started_as(rt::space_server_role)) program::detail::live_as_space_server();
    spmd::enter_if_rank();
}

} // namespace skein
