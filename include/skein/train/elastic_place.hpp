// SPDX-License-Identifier: Apache-2.0
#pragma once
// The place of a context in a job whose ranks change: brings it from one world into the next.

#include <skein/core/config.hpp>
#include <skein/dist/models.hpp>
#include <skein/spmd/elastic_world.hpp>

#include <memory>
#include <string>
#include <vector>

namespace skein::dist {
class comm_thread;
} // namespace skein::dist

namespace skein::train {

class context;

/// Thrown through a training function when this rank leaves its job in order: it is no error, and
/// no std::exception, so that what looks for errors passes it on. launch() ends the process with 0.
struct rank_left {};

/// Owns what a context of an elastic job refers to. On the compute thread.
class elastic_place {
public:
    /// `job` outlives it; `options` are those of every world's communicator.
    elastic_place(spmd::elastic_world& job, dist::comm_options options);
    elastic_place(const elastic_place&) = delete;
    elastic_place& operator=(const elastic_place&) = delete;
    ~elastic_place();

    /// Puts the context into the next world. What it had before lives on until release().
    ///   why     it broke, as this rank saw it
    ///   result  false: this rank is to leave
    ///   errors  those of elastic_world::next(), after which is_over(); what a communicator that is
    ///           made fails with: that world is broken
    [[nodiscard]] bool move(context& ctx, spmd::world_end last, const std::string& why = {});
    /// Lets the world before go, once nothing works in its memory any more.
    void release() noexcept;

    /// The job has no next world for this rank.
    [[nodiscard]] bool is_over() const noexcept { return over_; }
    [[nodiscard]] bool has_world() const noexcept { return now_.meeting != nullptr; }
    [[nodiscard]] spmd::elastic_world& job() const noexcept { return *job_; }

private:
    spmd::elastic_world* job_;
    dist::comm_options options_;
    struct world {
        std::unique_ptr<spmd::rendezvous> meeting; ///< outlives the communicator
        std::unique_ptr<dist::comm_thread> comm;   ///< null: of one rank
    };
    world now_;
    std::vector<world> before_; ///< in whose memory something may still be
    bool over_ = false;
};

} // namespace skein::train

#if SKEIN_HEADER_ONLY
#include <skein/train/detail/elastic_place.ipp>
#endif
