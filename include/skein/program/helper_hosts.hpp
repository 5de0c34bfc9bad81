// SPDX-License-Identifier: Apache-2.0
#pragma once
// Hosts that help a training: a launcher has started one program on unlike hosts, and those of one
// group train (spmd::launch_environment::role).
//
// Rank 0's process runs a head, on a thread; hosts that help are its nodes, with the label
// role=<their group>. Ranks wait for none of them, neither at first nor at the end. Sessions of all
// ranks use that head by default, so that a pipeline's helpers are on those hosts:
//
//     if (where.role == spmd::host_role::helps) return program::run_helper_host(where);
//     program::helped_job job(where);
//     train();                                        // its sessions find the nodes
//     job.end();                                      // else nodes wait for rank 0's next start
//
// train::launch() does this.

#include <skein/core/config.hpp>
#include <skein/net/address.hpp>
#include <skein/program/cluster_roles.hpp>
#include <skein/spmd/environment.hpp>

#include <memory>
#include <string>

namespace skein::program {

/// Where the head of a job's helper hosts is: at rank 0's host, on the port behind that of the
/// ranks' group.
///   errors  invalid_argument: there is no such port
[[nodiscard]] net::address head_of_helpers(const spmd::launch_environment& where);

/// The part of a rank. Made before sessions are, and destroyed after them.
class helped_job final : public job_with_helpers {
public:
    /// Of rank 0: the head listens when it returns. Of others: nothing but the address.
    ///   errors  those of head, find_or_make_token and head_of_helpers()
    explicit helped_job(const spmd::launch_environment& where);
    helped_job(const helped_job&) = delete;
    helped_job& operator=(const helped_job&) = delete;
    /// Nodes that were not told of the end take it for a crash.
    ~helped_job() override;

    /// The job is over: nodes leave, their processes end with 0. Blocks for the goodbyes, 2 s at
    /// most.
    void end() override;

    /// The head that sessions of this process use if nobody names another; empty: none.
    [[nodiscard]] static const std::string& head_here() noexcept;

private:
    struct parts;
    std::unique_ptr<parts> parts_;
};

/// The life of a process on a host that helps: a node until the job is over. It looks for rank 0's
/// head for SKEIN_HELPER_WAIT seconds (600), at first and whenever it has gone. Gives the exit code.
///   errors  peer_lost: the head has been gone for so long; refused, timeout, not_found: none has
///           answered; permission_denied: it has another token; already_exists: another process
///           has joined as this host; invalid_argument: SKEIN_HELPER_WAIT; not_supported: in a
///           process that one of the job has started
[[nodiscard]] int run_helper_host(const spmd::launch_environment& where);

} // namespace skein::program

#if SKEIN_HEADER_ONLY
#include <skein/program/detail/helper_hosts.ipp>
#endif
