// SPDX-License-Identifier: Apache-2.0
#pragma once
// A rank of an elastic job, in the real world: the control thread with one connection to the
// supervisor that has started this process, for life, and with one group after the other.
//
//     spmd::tell_program_kind(spmd::program_kind::elastic);    // launch() does
//     if (spmd::is_elastic_rank()) {
//         spmd::elastic_member me;
//         auto world = me.next(spmd::world_end::none);      // waits to be admitted
//         ...                                               // train; me.next(...) when it ends
//         me.leave();                                       // the training is done
//     }
//
// The control thread never computes, so a long kernel cannot miss a heartbeat.

#include <skein/core/config.hpp>
#include <skein/core/constants.hpp>
#include <skein/core/error.hpp>
#include <skein/spmd/elastic_keeper.hpp>
#include <skein/spmd/elastic_world.hpp>
#include <skein/spmd/environment.hpp>
#include <skein/spmd/group.hpp>
#include <skein/spmd/settings.hpp>

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace skein::spmd {

/// True in a process that the supervisor of an elastic job has started as one of its workers.
[[nodiscard]] bool is_elastic_rank(const variable_reader& read = process_environment());

/// How long a member waits for others, and what it must have like them.
struct elastic_member_options {
    /// How long exchange() of a world waits for the slowest rank.
    time_span exchange_deadline = time_constants::lan().collective_timeout;
    /// How long it waits for the other ranks of a new world.
    time_span join_deadline = time_constants::lan().collective_timeout;
    /// What all workers of the job must have alike: one that differs from the first is refused.
    std::vector<setting> settings{};

    /// See job_times; both deadlines are at least that.
    void wait_for_collectives(time_span timeout) {
        exchange_deadline = std::max(exchange_deadline, timeout);
        join_deadline = std::max(join_deadline, timeout);
    }
};

/// Connects in the constructor. leave() or fail() before the end; the destructor without either
/// looks like a crash to the others.
class elastic_member final : public elastic_world {
public:
    ///   errors  not_found: this process is no worker of an elastic job; timeout,
    ///           permission_denied: its supervisor
    explicit elastic_member(elastic_member_options options = {},
                            const variable_reader& read = process_environment());
    ~elastic_member() override;

    [[nodiscard]] std::uint64_t id() const override;
    [[nodiscard]] int least() const override;
    [[nodiscard]] int most() const override;
    /// The world may be used until the next call of next(), leave() or fail(), and destroyed at any
    /// time on any thread.
    ///   errors  besides those of the interface: mismatch, other settings than the others';
    ///           peer_lost: the supervisor is gone
    [[nodiscard]] std::unique_ptr<rendezvous> next(world_end last,
                                                   const std::string& why = {}) override;
    [[nodiscard]] world_change change() const override;
    [[nodiscard]] bool change_wanted() const noexcept override;
    [[nodiscard]] bool stop_wanted() const noexcept override;
    void wait_while_held() override;
    void ask_to_leave(const std::string& why) override;

    /// The signal that has asked the job to stop, or 0. From any thread.
    [[nodiscard]] int stop_signal() const noexcept override;
    /// Of the newest world: who its ranks are, and what the supervisor gives all; see
    /// group_options::given. Empty before the first.
    [[nodiscard]] std::vector<member_info> members() const;
    [[nodiscard]] byte_buffer given() const;
    /// Rank 0 of the newest world tells whoever reads the job's outcome; see group_client::tell.
    void tell(std::string_view key, byte_span what);
    /// Blocks until another rank of the newest world is known to be lost, at most so long; false if
    /// not.
    [[nodiscard]] bool wait_lost(time_span limit);

    /// The training is done: leaves the newest world in order. The job is over when all have.
    void leave();
    /// This rank fails, and with it the job; one that was in no world yet fails alone.
    void fail(const error& why);

private:
    class impl;
    std::unique_ptr<impl> impl_;
};

} // namespace skein::spmd

#if SKEIN_HEADER_ONLY
#include <skein/spmd/detail/elastic_client.ipp>
#include <skein/spmd/detail/elastic_member.ipp>
#endif
