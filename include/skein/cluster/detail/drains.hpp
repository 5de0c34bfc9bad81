// SPDX-License-Identifier: Apache-2.0
#pragma once
// What becomes of a node that is to be empty by a deadline, and what is told of it.
//
//     open      drivers have been asked for their leases there; entry processes of jobs are told to
//               end in time for their grace, if their next attempts have room on other nodes
//     over      the deadline has passed: what is left is named, and ended if that was asked for
//
// A drain without a deadline interrupts nothing: drivers are asked, and the rest ends by itself. The
// table of nodes has who drains; here is by when. Deadlines are in the head's log, by the wall
// clock; while a head runs, its own clock counts. A node that is about to be taken away says so
// itself: that drain is over with the node.
//
//     drains all(loop, parts, options);
//     const auto reply = all.ask({.node = "n2", .within_ms = 30'000});
//     all.look();                                   // now and then

#include <skein/core/config.hpp>
#include <skein/cluster/detail/head_memory.hpp>
#include <skein/cluster/detail/job_runner.hpp>
#include <skein/cluster/detail/lease_table.hpp>
#include <skein/cluster/detail/namespaces.hpp>
#include <skein/cluster/detail/node_table.hpp>
#include <skein/cluster/detail/room_elsewhere.hpp>
#include <skein/core/log.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/time.hpp>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

namespace skein::cluster::detail {

struct drain_options {
    duration shutdown_grace{}; ///< of an entry process whose job says nothing
    logging::level news = logging::level::info;
};

/// Belongs to one loop.
class drains {
public:
    /// The parts below it.
    struct parts {
        node_table& nodes;
        lease_table& leases;
        job_book& jobs;
        job_runner& runner;
        head_memory& memory;
        const namespaces& spaces;
    };

    /// All must outlive it.
    drains(loop& on, const parts& below, const lease_events& above, drain_options options);
    drains(const drains&) = delete;
    drains& operator=(const drains&) = delete;
    ~drains() = default;

    /// Takes the deadlines that the log has.
    void remember();
    /// Drains a node, changes that, takes it back, or only looks.
    ///   errors  those of node_table::drain
    [[nodiscard]] drain_reply ask(const ask_drain& asked);
    /// A node is about to be taken away.
    void on_notice(known_node& n, const node_leaves& notice);
    /// A node has come: what it says of a drain is news to a head that has no log.
    void on_hello(known_node& n, const node_hello& h);
    /// What its agent is told.
    [[nodiscard]] node_drains message_for(const lease_node& n) const;
    /// What time brings.
    void look();
    /// See lease_table.
    [[nodiscard]] std::string no_room_for(const lease& rank);

private:
    struct term {
        time_point until = time_point::max(); ///< the earlier one of the two below
        bool force = false;
        bool is_told = false;              ///< that its deadline has passed
        std::optional<time_point> asked{}; ///< for by somebody
        std::uint64_t of = 0;              ///< a notice of this start of its agent; 0: none
        time_point noticed = time_point::max();

        void settle() { until = std::min(noticed, asked.value_or(time_point::max())); }
    };

    void forget_notices();
    void set_term(const std::string& node, const ask_drain& asked);
    void look_at(const term& by, lease_node& n);
    void look_at_entry(const term& by, lease& l);
    void look_at_deadline(term& by, lease_node& n);
    void end_by_force(lease& l) const;
    [[nodiscard]] drain_reply reply_of(const std::string& node) const;
    [[nodiscard]] drained_lease words_of(const lease& l) const;
    [[nodiscard]] duration grace_of(const submitted_job& job) const;
    [[nodiscard]] const term* term_of(const std::string& node) const;

    loop& loop_;
    parts below_;
    const lease_events& above_;
    drain_options options_;
    std::map<std::string, term> terms_;  ///< by the node's name
    std::optional<room_elsewhere> plan_; ///< of one look
    /// By driver and group, since the last look: a plan for each costs as much as the cluster is big.
    std::map<std::pair<std::uint64_t, std::uint64_t>, std::string> no_room_;
};

} // namespace skein::cluster::detail

#if SKEIN_HEADER_ONLY
#include <skein/cluster/detail/drains.ipp>
#endif
