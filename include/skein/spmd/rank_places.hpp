// SPDX-License-Identifier: Apache-2.0
#pragma once
// Where the ranks of a training run, as their supervisor sees it: it asks for places, starts ranks
// there, sees their ends and stops them, and need not know whether that is this host or a cluster.
//
//     auto opening = places.open();                          // once
//     co_await opening;
//     auto reserving = places.reserve(4);                    // of each attempt
//     const auto where = co_await reserving;                 // local ranks, by rank
//     group_server server(network, places.listen(0), group); // group.secret = places.secret(0)
//     auto starting = places.start(0, std::move(what));
//     auto rank0 = co_await starting;                        // a proc::child
//
// Processes of this host: detail/supervisor.ipp. Leases of a cluster: cluster/leased_ranks.hpp.

#include <skein/core/task.hpp>
#include <skein/core/time.hpp>
#include <skein/net/address.hpp>
#include <skein/net/token.hpp>
#include <skein/proc/children.hpp>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace skein::spmd {

/// Of one rank, among those of its host.
struct rank_place {
    int local_rank = 0;
    int local_size = 1;
};

/// What a rank is started with.
struct rank_start {
    /// What it alone is told: process_environment() gives it there. Where its group is and that
    /// one's token are added by the places.
    std::map<std::string, std::string> variables{};
    net::address group{}; ///< where the group's server listens
    int attempt = 0;
    std::string executable = "/proc/self/exe"; ///< this program
    std::vector<std::string> argv{};           ///< empty: those of this process
    /// Added to the environment of the host's processes.
    std::vector<std::pair<std::string, std::string>> env{};
    int threads = 0;           ///< OMP_NUM_THREADS, unless the user has set that; 0: not set
    time_span stop_grace = {}; ///< from its SIGTERM to the kill, where the host counts
};

/// Belongs to the loop that made it. One attempt at a time.
class rank_places {
public:
    rank_places() = default;
    rank_places(const rank_places&) = delete;
    rank_places& operator=(const rank_places&) = delete;
    virtual ~rank_places() = default;

    /// Before anything else; e.g. joins a cluster.
    ///   errors  whatever makes all places impossible: nothing has been started
    [[nodiscard]] virtual task<void> open() = 0;
    /// Suspends until there is room for all ranks of an attempt; gives their places by rank.
    ///   errors  cancelled: what was reserved goes back; what makes it impossible
    [[nodiscard]] virtual task<std::vector<rank_place>> reserve(int ranks) = 0;
    /// Where the group's server is to listen, so that all places reach it; port 0: any.
    [[nodiscard]] virtual net::address listen(int attempt) const = 0;
    /// Of the group of an attempt.
    [[nodiscard]] virtual net::token secret(int attempt) const = 0;
    /// Its end says what became of it, also if it could not be started there.
    ///   errors  those of proc::children::start
    [[nodiscard]] virtual task<std::unique_ptr<proc::child>> start(int rank, rank_start what) = 0;
    /// The ranks may be of any program, which never meets: then their ends alone count.
    [[nodiscard]] virtual bool may_stay_silent() const { return false; }
    /// Suspends until one of the attempt has said that its ranks meet. Only for those that may stay
    /// silent.
    ///   errors  cancelled
    [[nodiscard]] virtual task<void> until_met() { co_return; }
    /// All ranks of the attempt have ended.
    virtual void release() = 0;
    /// After everything else, also after a failed open(). Suspends until what the ranks have
    /// printed is out, for some seconds at most: a reader may have stopped.
    [[nodiscard]] virtual task<void> close() = 0;
};

} // namespace skein::spmd
