// SPDX-License-Identifier: Apache-2.0
#pragma once
// The body of rt/run_options.hpp.

#include <skein/rt/boot.hpp>
#include <skein/rt/process.hpp>
#include <skein/rt/runtime.hpp>
#include <skein/rt/standard_files.hpp>
#include <skein/rt/worker_source.hpp>

#include <atomic>
#include <cstdlib>

#include <unistd.h>

namespace skein {

namespace rt::detail {

/// An agent has started this process to keep a namespace; what follows run() is the driver's, as in workers.
[[noreturn]] SKEIN_INLINE void live_as_keeper() {
    static constinit std::atomic_flag taken = ATOMIC_FLAG_INIT;
    while (taken.test_and_set()) ::pause();
    const auto* const roles = roles_of_program();
    if (roles == nullptr) {
        (void)leave_last_words("not supported: this program was compiled without the cluster");
        std::exit(exit_code::failed);
    }
    std::exit(roles->keep());
}

} // namespace rt::detail

SKEIN_INLINE void serve_if_worker() {
    rt::open_standard_files();
    // A task of a worker may be a driver of its own: it has a runtime.
    if (rt::is_worker() && rt::runtime::try_current() == nullptr) rt::detail::live_as_worker();
    if (rt::started_as(rt::keeper_role)) rt::detail::live_as_keeper();
}

} // namespace skein
