// SPDX-License-Identifier: Apache-2.0
#pragma once
// What `skein run` does on a host: a program of any kind, started as many times as there are ranks,
// and supervised as it says it is (spmd/program_kind.hpp).
//
//     spmd::program_run_options how;
//     how.host.job = "gpt";
//     how.host.workers_per_host = 2;
//     how.host.argv = {"./train", "--data", "d"};
//     const auto outcome = spmd::run_program(how);
//
// any program    when a rank fails, the others are asked to end (SIGTERM; SIGKILL after their
//                grace), and all start again
// fixed ranks    the same, and they end by themselves, as their group tells them
// elastic        as run_elastic_host(): those that live go on
//
// On several hosts (host.hosts, or a register) ranks that start again do so on all of them: this
// host is then one worker of a job of hosts (spmd/detail/host_member.hpp).

#include <skein/core/config.hpp>
#include <skein/spmd/elastic_run.hpp>
#include <skein/spmd/rank_output.hpp>
#include <skein/spmd/supervisor.hpp>

#include <functional>

namespace skein::spmd {

/// A job, and this host's part in it.
struct program_run_options {
    /// The job; as it is where the program is elastic.
    elastic_run_options host{};
    rank_output_options output{};
    /// Told of each restart of all ranks of one host; several hosts say it by host.say.
    std::function<void(const error& why, int restart, int max_failures)> on_restart{};
};

/// Runs it to its end; blocks. Takes the signals.
///   errors  those of run_elastic_host; not_supported: files of output for elastic workers
[[nodiscard]] supervisor_outcome run_program(program_run_options options);

} // namespace skein::spmd

#if SKEIN_HEADER_ONLY
#include <skein/spmd/detail/host_member.ipp>
#include <skein/spmd/detail/program_run.ipp>
#endif
