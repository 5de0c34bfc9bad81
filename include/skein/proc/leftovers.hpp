// SPDX-License-Identifier: Apache-2.0
#pragma once
// Children that have ended and that nobody waits for: a task that forks and forgets, and orphans
// that come to process 1 of a container. Each keeps a number and an entry of the kernel until its
// parent asks for its end.
//
//     beside.spawn(proc::reap_leftovers([&] { return no_user_code_runs(); }));
//
// What a child_process holds is left to it, whoever waits for it and when.

#include <skein/core/task.hpp>
#include <skein/core/time.hpp>

#include <chrono>
#include <cstddef>
#include <functional>
#include <vector>

#include <sys/types.h>

namespace skein::proc {

/// The ended children that were seen once; of one process, one thread.
class leftovers {
public:
    /// Reaps what had ended by the last look already, and gives how many that were. For a moment in
    /// which nobody can be waiting for a child of their own. Cheap where there is none.
    std::size_t look();

private:
    std::vector<pid_t> seen_; ///< sorted
};

/// Looks again and again, when is_idle() says that nobody can be waiting for a child; until it is
/// cancelled.
[[nodiscard]] task<void> reap_leftovers(std::function<bool()> is_idle,
                                        duration pause = std::chrono::seconds(1));

} // namespace skein::proc

#if SKEIN_HEADER_ONLY
#include <skein/proc/detail/leftovers.ipp>
#endif
