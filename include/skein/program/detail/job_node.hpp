// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a process offers as a node of a job, and how it takes its part in one. Bodies in job.ipp.

#include <skein/core/config.hpp>
#include <skein/cluster/agent.hpp>
#include <skein/net/token.hpp>
#include <skein/spmd/environment.hpp>

namespace skein::program::detail {

/// A node of the head that is where the ranks would meet.
///   errors  those of meeting_point()
[[nodiscard]] cluster::agent_options node_of_job(const spmd::launch_environment& where,
                                                 const net::token& secret);

/// What this process starts from now on has no part in the job, and a secret of its own.
void enter_job();

} // namespace skein::program::detail
