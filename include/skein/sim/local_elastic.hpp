// SPDX-License-Identifier: Apache-2.0
#pragma once
// An elastic job for ranks that are threads of one process: tests, benchmarks.
//
//     local_elastic job(1, 4);
//     auto& mine = job.add();                    // one for each thread, before it starts
//     elastic_place place(mine, options);        // on that thread
//     job.lose(mine.id(), why);                  // from any thread

#include <skein/core/error.hpp>
#include <skein/sim/local_rendezvous.hpp>
#include <skein/spmd/elastic_world.hpp>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace skein::sim {

/// Decides who is in the next world. Outlives its members; a member is used by one thread.
class local_elastic {
public:
    local_elastic(int least, int most);
    local_elastic(const local_elastic&) = delete;
    local_elastic& operator=(const local_elastic&) = delete;
    ~local_elastic();

    /// A rank that will ask for its first world. The first world waits for all that were added
    /// before it forms; later ones are awaited once they ask.
    [[nodiscard]] spmd::elastic_world& add();
    /// Plays the loss of a rank: its world breaks, the next one is without it.
    void lose(std::uint64_t id, const error& why);
    /// All ranks are asked to save and end.
    void stop();
    /// Worlds that have formed.
    [[nodiscard]] std::uint64_t generation() const;
    /// Blocks until a rank that is no member waits for its first world.
    void wait_for_joiner();

private:
    class member;
    struct generation_world;

    void form();
    [[nodiscard]] bool is_ready() const;

    int least_, most_;
    mutable std::mutex guard_; // the fields below
    std::condition_variable changed_;
    std::vector<std::unique_ptr<member>> all_;
    std::vector<member*> members_; // of the newest world, in their order
    std::shared_ptr<generation_world> now_;
    std::uint64_t generation_ = 0;
    std::string why_;
    bool has_loss_ = false; ///< since the newest world formed
    std::atomic<bool> stops_{false};
};

} // namespace skein::sim

#if SKEIN_HEADER_ONLY
#include <skein/sim/detail/local_elastic.ipp>
#endif
