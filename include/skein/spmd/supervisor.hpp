// SPDX-License-Identifier: Apache-2.0
#pragma once
// The supervisor of a training: starts N copies of this program as ranks, on this host or where it
// is told, serves their group, and starts all of them again from the last checkpoint when one is
// lost.
//
// What ends a rank for good (a usage error, a NaN, a full disk) is not tried again: it would only
// fail again; nor is what has ended two attempts at the same step in the same words. Ranks begin in the folder in which this program was started. Ctrl-C asks the ranks to
// stop in order; a second one kills them. When the supervisor dies, however it dies, the kernel
// kills the ranks. A process may have several at once, each on a thread of its own.

#include <skein/core/bytes.hpp>
#include <skein/core/constants.hpp>
#include <skein/core/error.hpp>
#include <skein/core/time.hpp>
#include <skein/spmd/group.hpp>
#include <skein/spmd/host_share.hpp>
#include <skein/spmd/rank_places.hpp>

#include <chrono>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace skein {
class loop;
}

namespace skein::spmd {

struct supervisor_outcome;

/// How many ranks a supervisor starts, with what, and how patient it is with them.
struct supervisor_options {
    int workers = 2;
    int max_failures = 3;                                        ///< restarts before it gives up
    time_span backoff = time_constants::lan().job_restart_first; ///< before a restart; doubles
    time_span stop_grace = time_constants::lan().stop_grace; ///< from a stop request to the kill
    /// The same for ranks that have not said that they meet; also for the others of one that fails.
    time_span silent_grace = time_constants::lan().stop_grace;
    time_span crash_grace = time_constants::lan().crash_grace; ///< for the others to leave
    time_span join_deadline = 2 * time_constants::lan().rendezvous_timeout;
    std::string executable = "/proc/self/exe";
    std::vector<std::string> argv{}; ///< of each rank; empty: this process's own
    std::vector<std::pair<std::string, std::string>> env{}; ///< added to each rank's environment
    int threads = 1; ///< OMP_NUM_THREADS of each rank, unless the user has set that; 0: not set
    net::keep_alive alive = group_options{}.alive;
    /// SIGINT, SIGTERM and SIGHUP are this job's while it works; false: they stay what they are.
    bool takes_signals = true;
    /// Becomes readable: the ranks are asked to stop, as by a first SIGTERM. -1: none.
    int stop_fd = -1;
    /// Variables that only process_environment() of the ranks gives, not their environment.
    std::vector<std::pair<std::string, std::string>> variables{};
    byte_buffer given{};       ///< to every rank; see group_options
    std::size_t most_told = 0; ///< by rank 0; see group_options
    /// Makes the places of the ranks, on the supervisor's loop and network, which outlive them;
    /// empty: they are processes of this host.
    std::function<std::unique_ptr<rank_places>(loop& on, net::network& via)> places{};
    /// Told of each restart: the failure and how many restarts there have been, this one included.
    std::function<void(const error& why, int restart, int max_failures)> on_restart{};
    /// Told of the first stop request, when it comes.
    std::function<void()> on_stop{};
    /// The ranks are some of a world of several hosts; nothing: they are all of it.
    std::optional<host_share> share{};
    /// Told once of an attempt that fails, when it is known why: other ranks may still run.
    std::function<void(const supervisor_outcome& how)> on_failing{};
};

/// How the job ended.
struct supervisor_outcome {
    std::optional<error> failure; ///< the last attempt's; nothing = done
    int restarts = 0;
    int stop_signal = 0; ///< SIGINT or SIGTERM if a person or a system stopped it
    int culprit = -1;    ///< the rank that failed; -1 if nobody in particular
    /// Of the culprit, as a shell says it: its exit code, or 128 and its signal; 0: it had none yet.
    int culprit_code = 0;
    bool is_lasting = false;   ///< the failure would only come again
    bool is_elsewhere = false; ///< the culprit is a rank of another host, which knows more
    /// What rank 0 has told, of each key the newest of all attempts.
    std::map<std::string, byte_buffer> told{};
};

/// True for failures that come again on every attempt.
[[nodiscard]] constexpr bool is_lasting(errc code) noexcept {
    switch (code) {
    case errc::usage:
    case errc::invalid_argument:
    case errc::not_supported:
    case errc::not_finite:
    case errc::mismatch:
    case errc::malformed:
    case errc::too_large:
    case errc::already_exists:
    case errc::permission_denied:
    case errc::not_found:
    case errc::disk_full: return true;
    default: return false;
    }
}

/// Whether two attempts have ended alike: with the same words about the same step of a rank. The
/// next would, too.
[[nodiscard]] inline bool comes_again(const error& before, const error& now) {
    const bool names_step = (now.text() + " " + now.where()).find(" at step ") != std::string::npos;
    return names_step && before.code() == now.code() && before.text() == now.text() &&
           before.where() == now.where();
}

/// Runs the job to its end; blocks. On any thread, also on several at once: at most one of them
/// takes the signals.
///   errors  not_supported: a loop runs on this thread, or this process is a worker: its copies
///           would be none
[[nodiscard]] supervisor_outcome supervise(supervisor_options options);

} // namespace skein::spmd

#if SKEIN_HEADER_ONLY
#include <skein/spmd/detail/supervisor.ipp>
#endif
