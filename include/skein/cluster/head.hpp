// SPDX-License-Identifier: Apache-2.0
#pragma once
// The head of a cluster: knows its nodes and drivers, and grants drivers leases on nodes.
//
//     cluster::head_options how;
//     how.listen = net::address::tcp("127.0.0.1", 0);
//     how.secret = net::token::generate();
//     cluster::head h(loop, network, how);
//     auto serving = h.serve();                     // until stop(), or a tool says so
//     co_await serving;
//
// Calls do not go through it: a driver talks to its workers directly, and goes on while the head is
// away. What the head knows is what nodes and drivers tell it when they come, so that one that was
// started again learns it from them within seconds; which nodes are drained, which are missing, and
// which drivers there were, it has from its log, if it has one. A node whose agent has died is lost
// with its leases after head_options::node_grace; one that is only silent, as a busy or paused host
// is, after lost_after. A driver that is away keeps its workers for driver_grace.

#include <skein/core/config.hpp>
#include <skein/cluster/access.hpp>
#include <skein/cluster/job_progress.hpp>
#include <skein/cluster/load_history.hpp>
#include <skein/cluster/messages.hpp>
#include <skein/core/bytes.hpp>
#include <skein/core/constants.hpp>
#include <skein/core/log.hpp>
#include <skein/core/task.hpp>
#include <skein/core/time.hpp>
#include <skein/net/address.hpp>
#include <skein/net/token.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace skein {
class loop;
}

namespace skein::net {
class admission;
class network;
class stream;
} // namespace skein::net

namespace skein::cluster::detail {
class head_keys;
} // namespace skein::cluster::detail

namespace skein::cluster {

class head_log;
class job_storage;

/// What answers HTTP at a head's port; see program::head_program::web. Runs on the head's loop.
class head_web {
public:
    head_web() = default;
    head_web(const head_web&) = delete;
    head_web& operator=(const head_web&) = delete;
    virtual ~head_web() = default;

    /// Serves one client, whose first bytes are no handshake of a peer, until it leaves; see
    /// net::link_endpoint::on_http.
    [[nodiscard]] virtual task<void> serve(std::unique_ptr<net::stream> with, byte_buffer first,
                                           net::admission* place) = 0;
    /// A path that lets the browser which opens it in, once.
    [[nodiscard]] virtual std::string login_link() = 0;
};

/// Calls of drivers: of those that are there, and of all that this head has known.
struct call_counts {
    std::uint64_t submitted = 0, done = 0, failed = 0; ///< failed ones are done, too
};

/// What a head counts.
struct head_counts {
    std::size_t leases_waiting = 0, leases_granted = 0, leases_expected = 0, leases_stopping = 0;
    std::size_t node_links = 0, driver_links = 0, other_links = 0;
    call_counts calls;
    std::map<std::string, call_counts> by_program; ///< of drivers that are there, by name
};

/// How a head listens, and how patient it is.
struct head_options {
    net::address listen = net::address::tcp("127.0.0.1", default_port);
    net::token secret{}; ///< that all of the cluster share
    std::string name = "head", host{};
    std::int64_t pid = 0;
    std::uint64_t incarnation = 0; ///< of this start of this process; 0: drawn
    /// The time that a node's link has to resume after a break; a link that falls silent breaks
    /// after net::keep_alive::dead_after. A node whose connection was closed, as that of an agent
    /// that dies, is lost when this time is over.
    time_span node_grace = time_constants::lan().dead_after;
    /// A node that is silent is lost so long after its last word, and what runs there is given up.
    /// Its agent is told, and ends that itself when it has been without a head for so long.
    time_span lost_after = std::chrono::seconds(30);
    time_span driver_grace = std::chrono::seconds(10);
    time_span look_every = std::chrono::milliseconds(250); ///< for what has run out
    /// A driver keeps a lease so long at least, before it is asked to give it back to others.
    time_span share_quantum = std::chrono::seconds(2);
    /// A lease that was asked back and that its driver keeps, since its worker has actors, is not
    /// asked back again before this time is over.
    time_span keep_grace = std::chrono::seconds(30);
    /// A lease that was asked back counts as on its way for this time; then it is asked back again.
    time_span recall_grace = std::chrono::seconds(5);
    std::size_t most_leases = std::size_t{1} << 16; ///< of one driver
    time_constants times{};                         ///< of namespaces
    logging::level news = logging::level::info;     ///< at which it is logged who comes and goes
    /// What it remembers over its own end, see head_log.hpp; nullptr: nothing. The head's own from
    /// now on: it opens it, blocking, and has a thread write to it later.
    std::shared_ptr<head_log> log{};
    /// The files that jobs bring; nullptr: jobs that bring files are refused.
    std::shared_ptr<job_storage> storage{};
    /// Of that storage, for what attempts of jobs leave behind.
    std::uint64_t results_bytes = std::uint64_t{8} << 30;
    /// A folder that all nodes see: runs of trainings go there, so that their ranks may be on any.
    /// "": there is none; then the ranks of a training are all on the host that started it.
    std::string runs{};
};

/// Belongs to one loop. Its serve() must have ended before it is destroyed.
class head {
public:
    /// Binds at once.
    ///   errors  those of network::listen; permission_denied: an address that other hosts can reach
    ///           without a token; of the log: those of head_log::open, mismatch (it is that of
    ///           another cluster)
    head(loop& on, net::network& via, head_options how);
    head(const head&) = delete;
    head& operator=(const head&) = delete;
    ~head();

    [[nodiscard]] net::address local() const;

    /// Serves nodes, drivers and tools until stop(), or until one of these asks for the cluster's
    /// end; tells them then, and returns when all have gone.
    ///   errors  cancelled: they are not told, and take it for a crash
    [[nodiscard]] task<void> serve();
    void stop() noexcept;

    /// What is there now.
    [[nodiscard]] cluster_status status() const;
    /// Grows whenever status(), jobs() or what they print and write changes.
    [[nodiscard]] std::uint64_t changes() const noexcept;

    /// How busy the nodes are that tell it, by name; also of those that are gone.
    [[nodiscard]] std::map<std::string, node_usage> usage() const;
    /// What came after a moment, seconds since 1970; see load_history::since.
    ///   errors  not_found: no node of this name has told it
    [[nodiscard]] load_curve usage_since(const std::string& node, std::int64_t unix_s,
                                         std::size_t most = load_history::most_points) const;
    [[nodiscard]] head_counts counts() const;
    /// What nodes have told last of their agents' numbers, by name.
    [[nodiscard]] std::map<std::string, std::vector<metric_family>> numbers() const;
    /// Grows whenever usage() changes.
    [[nodiscard]] std::uint64_t usage_changes() const noexcept;

    /// Grows when nodes come, go or are drained, and when something of them is given to somebody.
    [[nodiscard]] std::uint64_t node_changes() const noexcept;

    /// As cluster/jobs.hpp, for who is on this loop; all of them, however many.
    ///   errors  those of ask_to_submit and ask_for_jobs
    [[nodiscard]] job_list jobs(const std::string& id = {}) const;
    [[nodiscard]] job_lines job_output(const std::string& id, std::uint64_t from) const;
    /// Lines of a job from a number on, also those that its node alone has; some of them.
    [[nodiscard]] task<job_log> job_log_from(std::string id, std::uint64_t from);
    [[nodiscard]] job_table_text job_table(const std::string& id) const;
    [[nodiscard]] job_course course(const std::string& id) const;
    /// The same; of a job that has ended under another head also from its node.
    [[nodiscard]] task<job_table_text> find_job_table(std::string id);
    /// What is kept of what its attempts have left behind, the newest last.
    [[nodiscard]] task<std::vector<stored_set>> job_results(std::string id);
    [[nodiscard]] task<submit_reply> submit(job_request what);
    job_info end_job(const std::string& id, const std::string& by);
    void forget_job(const std::string& id);

    /// Answers HTTP; set it before serve().
    void set_web(std::shared_ptr<head_web> by);

private:
    friend class detail::head_keys;
    struct state; // in detail/head_state.hpp
    std::unique_ptr<state> state_;
};

} // namespace skein::cluster

#if SKEIN_HEADER_ONLY
#include <skein/cluster/detail/head.ipp>
#include <skein/cluster/detail/head_jobs.ipp>
#include <skein/cluster/detail/head_keys.ipp>
#include <skein/cluster/detail/head_leases.ipp>
#include <skein/cluster/detail/head_nodes.ipp>
#include <skein/cluster/detail/head_orders.ipp>
#include <skein/cluster/detail/head_spaces.ipp>
#include <skein/cluster/detail/head_status.ipp>
#endif
