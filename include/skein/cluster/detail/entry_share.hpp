// SPDX-License-Identifier: Apache-2.0
#pragma once
// The cpus of a node that entry processes of jobs may take, all of them together: as many as it has.
// While the tasks of one wait for room its cpus are lent to them, see driver_waits.hpp; the next job
// does not begin with these, or each of a queue of jobs would begin and lend its own.

#include <skein/core/config.hpp>
#include <skein/sched/resources.hpp>

namespace skein::cluster::detail {

/// As texts about what waits say it.
inline constexpr const char* entry_cpus = ".cpus for entry processes";

/// A node, or the demand of an entry process, in the scheduler's books.
[[nodiscard]] inline sched::resources with_entry_share(sched::resources what) {
    what.set(entry_cpus, what.cpu);
    return what;
}

} // namespace skein::cluster::detail
