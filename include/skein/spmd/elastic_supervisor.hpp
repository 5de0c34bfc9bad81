// SPDX-License-Identifier: Apache-2.0
#pragma once
// The supervisor of an elastic job on one host: starts copies of this program as workers, makes
// views of those that are ready, and starts another one when one is lost.
//
// Workers are not told a rank when they start: they ask for their world (spmd/elastic_member.hpp).
// Ctrl-C and SIGTERM ask them to save and end; a second one kills them. When the supervisor dies,
// however it dies, the kernel kills them.

#include <skein/core/config.hpp>
#include <skein/core/bytes.hpp>
#include <skein/core/error.hpp>
#include <skein/net/limits.hpp>
#include <skein/spmd/elastic_coordinator.hpp>
#include <skein/spmd/local_keeper.hpp>
#include <skein/spmd/supervisor.hpp>

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace skein::spmd {

/// Says to a running job how many workers it should have. Shared by the job and whoever tells it;
/// its members may be called from any thread, also before the job begins and after its end.
class elastic_control {
public:
    elastic_control() = default;
    elastic_control(const elastic_control&) = delete;
    elastic_control& operator=(const elastic_control&) = delete;

    /// Within least and most of the job, or the nearest of them.
    void set_target(int workers);

    /// Of the job: who is told, until end().
    void begin(std::function<void(int workers)> told);
    void end();

private:
    std::mutex mutex_; // guards all
    std::function<void(int)> told_;
    std::optional<int> wanted_;
};

/// How many workers, with what, and how patient the supervisor is with them.
struct elastic_options {
    int least = 1, most = 1; ///< workers in a world
    int start = 0;           ///< workers at the beginning; 0: `most`
    int max_failures = 3;    ///< losses of members and failed starts, then the job fails
    elastic_times times{};
    /// Of a worker's control connection; one that is silent for dead_after is killed.
    net::keep_alive alive = local_keeper_options{}.alive;
    time_span most_silence = local_keeper_options{}.most_silence; ///< see local_keeper_options
    std::string executable = "/proc/self/exe";
    std::vector<std::string> argv{}; ///< of each worker; empty: this process's own
    std::vector<std::pair<std::string, std::string>> env{}; ///< added to each one's environment
    int threads = 1; ///< OMP_NUM_THREADS of each worker, unless the user has set that; 0: not set
    /// SIGINT, SIGTERM and SIGHUP are this job's while it works; false: they stay what they are.
    bool takes_signals = true;
    /// Becomes readable: the workers are asked to stop, as by a first SIGTERM. -1: none.
    int stop_fd = -1;
    /// Variables that only process_environment() of the workers gives, not their environment.
    std::vector<std::pair<std::string, std::string>> variables{};
    byte_buffer given{};                        ///< to every rank of every view; see group_options
    std::size_t most_told = 0;                  ///< by rank 0; see group_options
    std::shared_ptr<elastic_control> control{}; ///< may be null
    /// Told of each view, and of the end (view::is_over), on the supervisor's thread.
    std::function<void(const view&)> on_view{};
    /// Told of each loss and failed start that counts, and how many there have been.
    std::function<void(const error& why, int failures, int max_failures)> on_failure{};
    /// Other lines for people, on the supervisor's thread; may be empty.
    std::function<void(const std::string&)> say{};
    /// Told of the first stop request, when it comes.
    std::function<void()> on_stop{};
};

/// Runs the job to its end; blocks. On any thread; as supervise().
///   result  restarts: the losses and failed starts that were counted; culprit: a rank of the
///           newest view
///   errors  invalid_argument: least, most or start; not_supported: a loop runs on this thread, or
///           this process is a worker
[[nodiscard]] supervisor_outcome supervise_elastic(elastic_options options);

} // namespace skein::spmd

#if SKEIN_HEADER_ONLY
#include <skein/spmd/detail/elastic_supervisor.ipp>
#endif
