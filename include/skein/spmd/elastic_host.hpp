// SPDX-License-Identifier: Apache-2.0
#pragma once
// The supervisor of one host of an elastic job on several: keeps the workers of its host, and is
// the coordinator or follows it.
//
// Who is the coordinator: without a register of its own, the one that can listen at the job's
// endpoint; with one (etcd), whoever holds its lease, and another one after it. The others dial it
// and offer places. A host may come at any time; one whose link to the coordinator is silent is
// lost, and comes back as a new one.

#include <skein/core/config.hpp>
#include <skein/core/constants.hpp>
#include <skein/core/error.hpp>
#include <skein/core/random.hpp>
#include <skein/core/task.hpp>
#include <skein/core/time.hpp>
#include <skein/net/address.hpp>
#include <skein/net/token.hpp>
#include <skein/spmd/elastic_coordinator.hpp>
#include <skein/spmd/local_keeper.hpp>
#include <skein/spmd/supervisor.hpp>
#include <skein/spmd/view_register.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace skein::net {
class network;
}
namespace skein::proc {
class children;
}

namespace skein::spmd {

/// One host's part of a job.
struct elastic_host_options {
    std::string job{};       ///< as the user calls it; the same on all hosts
    net::address endpoint{}; ///< of a job without a register of its own: where its coordinator is
    net::token secret{};     ///< of the links between hosts; the same on all of them
    std::string host{};      ///< this one, as others reach it
    local_keeper_options keeper{};
    coordinator_options coordinator{};
    /// Of the links between hosts: one that is silent for dead_after is lost.
    net::keep_alive alive{net::keep_alive_mode::on, time_constants::lan().group_heartbeat,
                          time_constants::lan().suspect_after, time_constants::lan().suspect_after};
    time_span meet_limit = std::chrono::minutes(10);  ///< until the coordinator is there at first
    time_span back_limit = std::chrono::seconds(7);   ///< until it is back, without a register
    std::function<void(const std::string&)> say{};    ///< lines for people; may be empty
    std::function<void(net::address)> on_listening{}; ///< the coordinator's own address
};

/// Lives on one loop, in either world.
class elastic_host {
public:
    /// `truth` null: a register in the coordinator's memory. All but `options` must outlive it.
    elastic_host(net::network& via, proc::children& on, view_register* truth,
                 elastic_host_options options);
    ~elastic_host();

    /// Until the job has ended, or this host's part of it.
    ///   errors  those of the register; timeout: nobody is at the endpoint; peer_lost: the
    ///           coordinator is gone for good; permission_denied, mismatch: it says no
    [[nodiscard]] task<supervisor_outcome> run();

    /// A first signal: the workers of this host leave in order, and if they are all, the job saves
    /// and stops.
    void stop(int signal);
    /// Now.
    void kill_all();
    /// This host is told to go: as stop(SIGTERM).
    void leave(const std::string& why);
    /// As ask_to_scale(), of the coordinator that this host is.
    ///   errors  not_found: it is none now
    [[nodiscard]] std::string scale(int workers);

private:
    class impl;
    std::unique_ptr<impl> impl_;
};

/// Asks the coordinator for another number of workers; gives what it says. An empty name of a job
/// is that of any.
///   errors  those of net::connect_patiently; mismatch: another job
[[nodiscard]] task<std::string> ask_to_scale(net::network& via, net::address endpoint,
                                             net::token secret, std::string job, int workers);

} // namespace skein::spmd

#if SKEIN_HEADER_ONLY
#include <skein/spmd/detail/elastic_host.ipp>
#include <skein/spmd/detail/keeper_links.ipp>
#endif
