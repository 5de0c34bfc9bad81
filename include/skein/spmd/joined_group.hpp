// SPDX-License-Identifier: Apache-2.0
#pragma once
// One rank's place in its group, in the real world: the control thread with the group client,
// behind the rendezvous interface. In a world without a supervisor rank 0's control thread also
// serves the group.
//
// The control thread never computes, so a long kernel cannot miss a heartbeat.

#include <skein/core/config.hpp>
#include <skein/core/constants.hpp>
#include <skein/spmd/environment.hpp>
#include <skein/spmd/group.hpp>
#include <skein/spmd/rendezvous.hpp>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace skein::spmd {

/// How long a rank waits for the others, and what it compares with them.
struct joined_group_options {
    time_span join_deadline = time_constants::lan().rendezvous_timeout;
    /// How long exchange() waits for the slowest rank.
    time_span exchange_deadline = 2 * time_constants::lan().rendezvous_timeout;
    std::vector<setting> settings{}; ///< what all ranks must have alike; see group_options
    /// While the ranks meet: when this becomes readable (stop_signals::fd()), joining is given up.
    int stop_fd = -1;
};

/// Joins in the constructor, which blocks until all ranks are there. leave() or fail() before the
/// end; the destructor without either looks to the others like a crash.
class joined_group final : public rendezvous {
public:
    ///   errors  those of group_client::join; cancelled: options.stop_fd; already_exists: rank 0's
    ///           port is in use
    joined_group(launch_environment where, net::token secret, joined_group_options options = {});
    ~joined_group() override;

    [[nodiscard]] int rank() const override;
    [[nodiscard]] int world_size() const override;
    [[nodiscard]] int local_rank() const override;
    [[nodiscard]] int local_size() const override;
    [[nodiscard]] int generation() const override;
    [[nodiscard]] std::string host() const override;
    [[nodiscard]] net::token secret() const override;
    [[nodiscard]] const std::vector<member_info>& members() const noexcept;

    std::vector<byte_buffer> exchange(std::string_view key, byte_span mine) override;
    /// What the group's server gives every rank; see group_options::given.
    [[nodiscard]] const byte_buffer& given() const noexcept;
    /// Rank 0 tells whoever reads the group's outcome; see group_client::tell.
    void tell(std::string_view key, byte_span what);
    [[nodiscard]] subscription on_lost(loss_listeners::listener lost) override;

    /// Blocks until another rank is known to be lost or to have failed, at most so long; false if
    /// not. What went wrong elsewhere is often seen first as a broken collective here.
    [[nodiscard]] bool wait_lost(time_span limit);

    /// This rank is done. Rank 0 of an unsupervised world returns when all ranks are.
    void leave();
    /// This rank fails; the others are told why.
    void fail(const error& why);

private:
    class impl;
    std::unique_ptr<impl> impl_;
};

} // namespace skein::spmd

#if SKEIN_HEADER_ONLY
#include <skein/spmd/detail/joined_group.ipp>
#endif
