// SPDX-License-Identifier: Apache-2.0
#pragma once
// A driver's workers on the nodes of a cluster: leases that the head grants, kept alive while the
// driver runs.
//
//     cluster::leased_workers_options how;
//     how.head = net::address::parse("tcp:10.0.0.1:7117").value();
//     how.secret = secret;
//     how.executable = "/shared/app";               // the same build on every node
//     cluster::leased_workers workers(loop, network, driver, how);
//     scope.spawn(workers.serve());
//
// Workers connect to the driver, and calls go directly between them. When the head is away they go
// on; what nodes are lost meanwhile is learned when it is back. A worker that has ended is
// replaced, on whichever node has room.

#include <skein/core/config.hpp>
#include <skein/core/constants.hpp>
#include <skein/core/task.hpp>
#include <skein/core/time.hpp>
#include <skein/net/address.hpp>
#include <skein/net/token.hpp>
#include <skein/proc/output.hpp>
#include <skein/rt/worker_source.hpp>
#include <skein/sched/resources.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace skein {
class loop;
}

namespace skein::net {
class network;
}

namespace skein::rt {
class runtime;
}

namespace skein::cluster {

/// The cluster of a driver, and the workers that the driver wants there.
struct leased_workers_options {
    net::address head{};
    net::token secret{};
    int workers = 0; ///< 0: as many as the cluster has room for, more when nodes join
    int most_workers = 4096;
    sched::resources demand{}; ///< of each; empty: one cpu
    std::uint32_t weight = 1;
    std::string name{}; ///< of the job, for people
    /// The agents start it, and it must be this build. It and the folder: see program_place.
    std::string executable{};
    std::string program = "skein"; ///< argv[0] that `ps` shows
    std::string folder{};          ///< the workers' working directory, on each node
    std::string job{};             ///< see program_place
    /// The address at which the driver listens for its workers. Port 0: any. Empty host: this host
    /// alone when the head listens there alone, else all addresses.
    net::address listen{};
    /// The address that workers are told; empty: the host by which the head knows this one, and the
    /// port.
    std::string advertise{};
    time_span join_within = std::chrono::seconds(10); ///< the first time
    /// All calls fail when no worker has started for this time and three or more have failed to.
    time_span start_within = std::chrono::seconds(20);
    time_constants times{};
    /// Prints what workers print; empty: that appears where their agents were started.
    proc::print_lines print{};
    /// The namespace whose space server this driver is: other programs are its space clients, and
    /// each worker is for one demand. Empty: none.
    std::string space{};
    std::uint64_t space_node =
        0; ///< the incarnation of the agent that holds the space server's process
    std::function<void()> on_give_up{}; ///< told once, when no worker comes any more
};

/// Belongs to the driver's loop. Its serve() must have ended before it is destroyed.
class leased_workers final : public rt::worker_source {
public:
    /// All of them must outlive it.
    leased_workers(loop& on, net::network& via, rt::runtime& driver, leased_workers_options how);
    ~leased_workers() override;

    /// Joins the head, and serves workers until stop() and the runtime's close(). That no head
    /// answers, that it refuses this driver, that no worker starts, or that the cluster was
    /// stopped, is told to the runtime (give_up), whose calls fail with it.
    [[nodiscard]] task<void> serve() override;
    /// No worker comes from now on; the leases are given back.
    void stop() noexcept override;
    /// Asks the head for leases that hold what a demand asks for, in place of others where there is
    /// no room.
    void want(const rt::worker_demand& what) override;
    void blocked(const net::channel& worker, bool on) override;
    /// Has its agent kill its process, now or when the head is back.
    void end_now(const net::channel& worker) override;
    /// Asks the head for a lease on its node that takes no room there.
    [[nodiscard]] bool want_beside(const net::channel& worker) override;
    /// Asks the head for a placement group, and gives it back.
    void want_group(const rt::worker_group& what) override;
    void drop_group(std::uint64_t number) override;
    /// None for a space server, whose space clients have none, and where one address is told, which
    /// may be the only one that is reached.
    [[nodiscard]] std::optional<rt::store_meeting> stores() const override;
    /// Asks the head where space servers are.
    [[nodiscard]] bool has_spaces() const noexcept override { return true; }
    [[nodiscard]] task<rt::space_place> find_space(std::string space,
                                                   std::uint64_t space_server) override;
    void serve_spaces_only() override;
    void need() override;

    /// Workers that are connected; leases that the head has granted, and all that were asked for.
    [[nodiscard]] std::size_t connected() const noexcept;
    [[nodiscard]] std::size_t granted() const noexcept;
    [[nodiscard]] std::size_t wanted() const noexcept;

private:
    struct state; // in detail/leased_workers_state.hpp
    std::unique_ptr<state> state_;
};

} // namespace skein::cluster

#if SKEIN_HEADER_ONLY
#include <skein/cluster/detail/leased_pool.ipp>
#include <skein/cluster/detail/leased_workers.ipp>
#endif
