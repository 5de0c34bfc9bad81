// SPDX-License-Identifier: Apache-2.0
#pragma once
// How run() and session start workers, where neither the command line nor the environment says it.
//
//     skein::run_options how;
//     how.workers = 2;
//     return skein::run(argc, argv, app, how);

#include <skein/program/local_workers.hpp>

#include <string>

namespace skein {

/// Defaults of run() and session; flags and environment win.
struct run_options {
    int workers = 0;          ///< 0: one per core
    std::string address{};    ///< of the head of a cluster, or "local"; empty: workers of this host
    std::string token_file{}; ///< the cluster's token; empty: as without --token-file
    /// Memory for objects that processes of this host share, e.g. "2GiB"; "0": none, large values
    /// travel in messages; empty: 30 % of the memory that this process may use. SKEIN_STORE wins.
    std::string store{};
    program::local_workers_options processes{};
};

/// The first line of a main that does what a worker must not do before it comes to run() or its
/// session or to train::run(): in a process that was started as a worker, as the space server of a
/// namespace, or as a rank of train::run(), it does not return, but in what runs there. Elsewhere
/// it does nothing.
void serve_if_worker();

} // namespace skein

#if SKEIN_HEADER_ONLY
#include <skein/program/detail/run_options.ipp>
#endif
