// SPDX-License-Identifier: Apache-2.0
#pragma once
// The ranks of a training on the nodes of a cluster: each is a lease in a placement group, started
// by the agent of its node.
//
//     cluster::leased_ranks_options how;
//     how.head = net::address::parse("tcp:10.0.0.1:7117").value();
//     how.secret = secret;
//     how.program = cluster::this_program(how.head);  // the same build on every node
//     spmd::supervisor_options job;
//     job.children = [how](loop& on, net::network& via) {
//         return std::make_shared<cluster::leased_ranks>(on, via, how);
//     };
//
// Ranks connect to the group's server in the supervisor, and to each other directly. When the head
// is away they go on. One of them or its node is lost: the supervisor ends the attempt, and the
// next one has a placement group of its own, where there is room then.
//
// Workers of an elastic training come and go: each is a lease of its own, a demand that waits for
// room as long as it takes, and is asked back. docs/design/0046-leased-workers.md

#include <skein/core/config.hpp>
#include <skein/core/constants.hpp>
#include <skein/core/task.hpp>
#include <skein/core/time.hpp>
#include <skein/net/address.hpp>
#include <skein/net/token.hpp>
#include <skein/proc/children.hpp>
#include <skein/proc/output.hpp>
#include <skein/sched/resources.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace skein {
class loop;
}

namespace skein::net {
class network;
}

namespace skein::cluster {

/// A program as agents start it. Paths are absolute, or begin in the folder of the job that it came
/// out of: each node has that folder somewhere else.
struct program_place {
    std::string executable{};
    std::string folder{}; ///< working directory
    std::string job{};    ///< the id of what was submitted; empty: nothing was
};

/// This process's program: its executable, the folder in which it was started, and its job, if that
/// is one of this head.
///   errors  not_found: the file was replaced while it runs
[[nodiscard]] program_place this_program(const net::address& head);

/// Which cluster, and what a training wants of it.
struct leased_ranks_options {
    net::address head{};
    net::token secret{};
    program_place program{};
    std::string name{};        ///< of the program, for people
    sched::resources demand{}; ///< of each rank; empty: one cpu
    std::string host{};        ///< this one
    std::int64_t pid = 0;
    std::uint64_t incarnation = 0; ///< of this driver; 0: drawn
    /// The host by which nodes reach this one; empty: that by which the head knows it.
    std::string advertise{};
    time_span join_within = std::chrono::seconds(10); ///< the first time
    time_constants times{};
    /// Prints what ranks print; empty: that appears where their agents were started.
    proc::print_lines print{};
    /// Told why ranks wait for room, of each reason once; empty text: they have it.
    std::function<void(const std::string& why)> on_wait{};
    std::string runs{}; ///< their SKEIN_RUNS_DIR; empty: the folder of the cluster
    /// `runs` is a folder of this host, absolute, as the program calls it: ranks elsewhere reach it
    /// over the network, and their SKEIN_RUNS_DIR is the job's.
    bool serves_runs = false;
    bool come_and_go = false; ///< they are workers of an elastic training
};

/// Belongs to the supervisor's loop.
class leased_ranks final : public proc::children {
public:
    /// All of them must outlive it.
    leased_ranks(loop& on, net::network& via, leased_ranks_options how);
    ~leased_ranks() override;

    ///   errors  those of joining a cluster: refused, timeout, permission_denied, mismatch;
    ///           not_supported: it has no folder for runs that all nodes see, and none is served
    [[nodiscard]] task<void> open() override;
    ///   errors  cancelled; exhausted: more ranks than a group may have; closed: the cluster was
    ///           stopped
    [[nodiscard]] task<std::vector<proc::child_place>> reserve(int ranks) override;
    /// Its secret is that of all ranks that were reserved together.
    [[nodiscard]] proc::children_door door() override;
    /// The next of those that were reserved. Its end says also that it could not be started.
    ///   errors  those of net::folder_server, where runs are served
    [[nodiscard]] task<std::unique_ptr<proc::child>> start(proc::child_options how) override;
    void release() override;
    /// A node of theirs is drained with a deadline, and others have room for all of them.
    void on_leave(std::function<void(const std::string& why)> tell) override;
    [[nodiscard]] bool are_placed_later() const noexcept override;
    void set_scaler(std::function<std::string(int many)> scaler) override;
    [[nodiscard]] task<void> close() override;

private:
    struct state; // in detail/leased_ranks.ipp
    std::shared_ptr<state> state_;
};

} // namespace skein::cluster

#if SKEIN_HEADER_ONLY
#include <skein/cluster/detail/leased_ranks.ipp>
#endif
