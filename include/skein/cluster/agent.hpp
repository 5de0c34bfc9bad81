// SPDX-License-Identifier: Apache-2.0
#pragma once
// The agent of a node: joins a head, starts the workers that it asks for, and says how they ended.
//
//     cluster::agent_options how;
//     how.head = net::address::parse("tcp:10.0.0.1:7117").value();
//     how.secret = secret;
//     proc::local_children here(loop);
//     cluster::agent a(loop, network, here, how);
//     auto serving = a.serve();                     // until stop(), or the head says so
//     co_await serving;
//
// User code never runs on its loop, so that it answers for its node whatever the workers compute.
// When the head is away, workers go on, and the agent comes back to it; after
// agent_options::orphan_grace without a head they end, or after the time for which the head would
// have waited for this node, if that is longer.

#include <skein/core/config.hpp>
#include <skein/cluster/messages.hpp>
#include <skein/core/constants.hpp>
#include <skein/core/function.hpp>
#include <skein/core/log.hpp>
#include <skein/core/task.hpp>
#include <skein/core/time.hpp>
#include <skein/net/address.hpp>
#include <skein/net/token.hpp>
#include <skein/sched/resources.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace skein {
class loop;
}

namespace skein::net {
class network;
}

namespace skein::proc {
class children;
}

namespace skein::cluster {

class job_storage;

/// Whom an agent joins, and what its node offers.
struct agent_options {
    net::address head{};
    net::token secret{};
    std::string name{}; ///< empty: the head calls it by its host
    std::string host{};
    std::int64_t pid = 0;
    std::uint64_t incarnation = 0; ///< of this start of this process; 0: drawn
    /// cpus and memory of zero: what proc::children::resources() says.
    sched::resources offers{};
    std::vector<std::string> labels{};
    /// What CUDA_VISIBLE_DEVICES calls each gpu of `offers`; empty: their indices.
    std::vector<std::string> gpu_names{};
    /// The storage of jobs' folders and files, which this agent has to itself; nullptr: jobs that
    /// bring files are refused.
    std::shared_ptr<job_storage> storage{};
    /// Of the store that each program has here for its objects; 0: it keeps none, and processes read
    /// those of other nodes into memory of their own. Nothing: programs here use no objects.
    std::optional<std::uint64_t> store_bytes{};
    std::size_t most_workers = 4096;
    time_span join_within = std::chrono::seconds(60);  ///< the first time
    time_span orphan_grace = std::chrono::seconds(30); ///< then workers end
    /// Whether the agent ends with its workers, after orphan_grace without a head, instead of
    /// looking for its head for ever. No head can make such an agent wait longer.
    bool leaves_alone = false;
    time_span stop_grace =
        time_constants::lan().shutdown_grace; ///< of a worker, from SIGTERM to the kill
    time_constants times{};
    logging::level news = logging::level::info; ///< at which the course of things is logged
    /// Asked once a second how busy its host is, for the head; nullptr: the head is not told.
    std::shared_ptr<proc::host_watch> watch{};
    /// Whose numbers the head is told with that; nullptr: none. Outlives the agent.
    const metric_registry* numbers = nullptr;
    /// Waits until this host is about to be taken away, and gives the sign that says so; it is
    /// called once. Empty: there are none. See spmd/leave_notices.hpp.
    unique_function<task<std::string>()> until_notice{};
    time_span notice_within = std::chrono::minutes(2); ///< from that sign on the host is there
    /// Told of each welcome: the node's name.
    unique_function<void(const std::string& name)> on_joined{};
};

/// Belongs to one loop. Its serve() must have ended before it is destroyed.
class agent {
public:
    /// All of them must outlive it.
    agent(loop& on, net::network& via, proc::children& where, agent_options how);
    agent(const agent&) = delete;
    agent& operator=(const agent&) = delete;
    ~agent();

    /// Joins and serves until stop() or until the head ends the cluster, then ends all workers.
    ///   errors  the first time: those of net::link::connect (permission_denied: the token;
    ///           refused, timeout after join_within), and what the head says of the node
    ///           (already_exists: the name; invalid_argument, mismatch); later: permission_denied,
    ///           mismatch, peer_lost (leaves_alone); cancelled
    [[nodiscard]] task<void> serve();
    void stop() noexcept;

    /// Workers that run or load.
    [[nodiscard]] std::size_t workers() const noexcept;
    [[nodiscard]] bool is_joined() const noexcept;

private:
    struct state; // in detail/agent_state.hpp
    std::unique_ptr<state> state_;
};

} // namespace skein::cluster

#if SKEIN_HEADER_ONLY
#include <skein/cluster/detail/agent.ipp>
#include <skein/cluster/detail/agent_entries.ipp>
#include <skein/cluster/detail/agent_load.ipp>
#include <skein/cluster/detail/agent_logs.ipp>
#include <skein/cluster/detail/agent_orders.ipp>
#endif
