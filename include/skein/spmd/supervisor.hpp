// SPDX-License-Identifier: Apache-2.0
#pragma once
// The supervisor of a training: starts N copies of this program as ranks, on this host or where it
// is told, serves their group, and starts all of them again from the last checkpoint when one is
// lost.
//
// What ends a rank for good (a usage error, a NaN, a full disk) is not tried again: it would only
// fail again; nor is what has ended two attempts at the same step in the same words. Ranks begin in
// the folder in which this program was started. Ctrl-C asks the ranks to stop in order; a second
// one kills them. When the supervisor dies, however it dies, the kernel kills the ranks. A process
// may have several at once, each on a thread of its own.

#include <skein/core/backoff.hpp>
#include <skein/core/bytes.hpp>
#include <skein/core/constants.hpp>
#include <skein/core/error.hpp>
#include <skein/core/task.hpp>
#include <skein/core/time.hpp>
#include <skein/proc/children.hpp>
#include <skein/spmd/group.hpp>
#include <skein/spmd/host_share.hpp>

#include <algorithm>
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
struct view;

/// What each rank of a job is.
struct rank_program {
    std::string executable = "/proc/self/exe";              ///< empty: argv[0], looked up in PATH
    std::vector<std::string> argv{};                        ///< empty: this process's own
    std::vector<std::pair<std::string, std::string>> env{}; ///< added to its environment
    /// Variables that only process_environment() there gives, not its environment.
    std::vector<std::pair<std::string, std::string>> variables{};
    int threads = 1; ///< OMP_NUM_THREADS of each, unless the user has set that; 0: not set
};

/// The pauses and limits of a job.
struct job_times {
    time_span backoff = time_constants::lan().job_restart_first; ///< before a restart; doubles
    time_span stop_grace = time_constants::lan().stop_grace;     ///< from a stop to the kill
    /// The same for ranks that have not said that they meet; also for the others of one that fails.
    time_span silent_grace = time_constants::lan().stop_grace;
    time_span crash_grace = time_constants::lan().crash_grace; ///< for the others to leave

    // Where workers join and leave.
    time_span settle = std::chrono::milliseconds(50);       ///< from a loss on, for more of them
    time_span join_settle = std::chrono::milliseconds(200); ///< from the first that is ready on
    /// From the moment on at which the least number is ready for the first view, for the others.
    time_span first_settle = std::chrono::seconds(1);
    time_span pause_limit = std::chrono::minutes(10); ///< below the least number; then it fails
    time_span ready_limit = std::chrono::minutes(10); ///< from a start until it asks for a world
    time_span slow_start = std::chrono::seconds(30);  ///< then it is named
    /// After it has taken over from another coordinator, for the workers of the newest view.
    time_span take_over = std::chrono::seconds(1);
    /// A view without any member of the one before waits so long for those that nobody saw end.
    time_span lease = time_constants::lan().dead_after;
    /// From the first member of a world that asks for the next one, with nobody lost, for the
    /// others: those that have not asked by then hang, and are killed.
    time_span ask_limit = time_constants::lan().collective_timeout;
    time_span join_deadline = time_constants::lan().collective_timeout; ///< of a view's group

    /// Before another start, behind so many failures.
    [[nodiscard]] duration pause(int failures) const noexcept {
        return pause_after(failures, backoff, time_constants::lan().child_restart_most);
    }
    /// For ranks whose collectives wait so long for each other: a healthy one may learn only then
    /// that its world has ended. join_deadline and ask_limit are at least that.
    void wait_for_collectives(time_span timeout) {
        join_deadline = std::max(join_deadline, timeout);
        ask_limit = std::max(ask_limit, timeout);
    }
};

/// How a job is led, whoever its ranks are.
struct job_rules {
    int max_failures = 3; ///< restarts, or losses of workers and failed starts; then it fails
    job_times times{};
    byte_buffer given{};       ///< to every rank; see group_options
    std::size_t most_told = 0; ///< by rank 0; see group_options
    /// Told of each failure that counts, and how many there have been, this one included: of fixed
    /// ranks those that a restart follows, of others also what is refused.
    std::function<void(const error& why, int failures, int max_failures)> on_failure{};
    /// Told of each view, and of the end (view::is_over); fixed ranks have none.
    std::function<void(const view&)> on_view{};
    std::function<void(const std::string&)> say{}; ///< other lines for people; may be empty
};

/// What every supervisor is told. Its functions are called on its thread.
struct supervision : rank_program, job_rules {
    /// SIGINT, SIGTERM and SIGHUP are this job's while it works; false: they stay what they are.
    bool takes_signals = true;
    /// Becomes readable: the ranks are asked to stop, as by a first SIGTERM. -1: none.
    int stop_fd = -1;
    std::function<void()> on_stop{}; ///< told of the first stop request, when it comes
};

/// A job of a fixed number of ranks. Its fields are set one by one, as those of all options that have
/// parts: supervisor_options job; job.workers = 2;
struct supervisor_options : supervision {
    int workers = 2;
    time_span join_deadline = 2 * time_constants::lan().rendezvous_timeout; ///< until all have met
    net::keep_alive alive = group_options{}.alive;
    /// Makes where the ranks run, on the supervisor's loop and network, which outlive it; empty:
    /// on this host.
    std::function<std::shared_ptr<proc::children>(loop& on, net::network& via)> children{};
    /// They may be of any program, which never meets: then their ends alone count. Suspends until
    /// one of the attempt has said that its ranks meet; empty: all of them do.
    std::function<task<void>()> until_met{};
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
