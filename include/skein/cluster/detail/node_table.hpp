// SPDX-License-Identifier: Apache-2.0
#pragma once
// The nodes of a cluster: which are there, silent, resting or draining, and which are missing.
//
// An agent that dies is told by its kernel: its connection is closed, and the node is lost with what
// it ran. Silence says nothing: a host that is busy, paused or cut off for a while still runs what it
// ran. So a silent node keeps its leases until lost_after, also over the end of its link, gets
// nothing new meanwhile, and is believed when it comes back. A node that cannot start anything rests:
// see node_rest.hpp. A node that drains gets nothing new, and its leases are asked back. Missing ones
// are those that the log has.
//
//     struct head : node_links { ... };              // whose links these are
//     node_table nodes(loop, memory, leases, head, options);
//     auto& n = nodes.enter(incarnation, hello);
//     nodes.drain({.node = "n1"});
//     nodes.look();                                   // now and then: head.lose_node()

#include <skein/core/config.hpp>
#include <skein/cluster/detail/head_memory.hpp>
#include <skein/cluster/detail/head_silence.hpp>
#include <skein/cluster/detail/lease_table.hpp>
#include <skein/cluster/detail/node_messages.hpp>
#include <skein/cluster/detail/node_rest.hpp>
#include <skein/cluster/detail/tool_messages.hpp>
#include <skein/core/log.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/time.hpp>

#include <cstdint>
#include <map>
#include <memory>
#include <string>

namespace skein::cluster::detail {

struct known_node {
    std::uint64_t incarnation = 0;
    lease_node* room = nullptr;
    std::string host;
    std::int64_t pid = 0;
    node_silence silence;
    std::uint64_t alone_ms = 0; ///< so long it waits for a head itself, see node_hello
    node_rest rest;             ///< after starts that have failed

    [[nodiscard]] const std::string& name() const noexcept { return room->name; }
};

/// What a table of nodes asks of the head that has it. Nodes are named by their incarnations.
class node_links {
public:
    /// Whether nothing comes from a node; true also while its ended link is put away.
    [[nodiscard]] virtual bool is_silent(std::uint64_t node) const = 0;
    /// Its connection was closed, and it has not dialled again: as the kernel of a process does that
    /// has ended.
    [[nodiscard]] virtual bool has_died(std::uint64_t node) const = 0;
    virtual void tell_drains(std::uint64_t node, bool on) = 0;
    /// A node is given up.
    ///   may_run  nobody knows whether its processes have ended
    virtual void lose_node(std::uint64_t node, const std::string& why, bool may_run) = 0;
    /// Drivers hear how large the cluster is.
    virtual void tell_size() = 0;

protected:
    node_links() = default;
    node_links(const node_links&) = default;
    node_links& operator=(const node_links&) = default;
    ~node_links() = default;
};

/// See head_options.
struct node_options {
    duration node_grace{}, lost_after{}, look_every{};
    duration suspect_after{}; ///< a peer is called silent then
    logging::level news = logging::level::info;
};

/// Belongs to one loop.
class node_table {
public:
    /// All must outlive it.
    node_table(loop& on, head_memory& memory, lease_table& leases, node_links& links,
               node_options options)
        : loop_(on), memory_(memory), leases_(leases), links_(links), options_(options),
          looked_at_(on.now()) {}

    [[nodiscard]] const auto& all() const noexcept { return nodes_; } ///< by incarnation
    /// nullptr: there is none.
    [[nodiscard]] known_node* find(std::uint64_t incarnation) const;
    [[nodiscard]] known_node* find(const std::string& name) const;
    /// Grows when nodes come, go, fall silent, rest or drain.
    [[nodiscard]] std::uint64_t changes() const noexcept { return changes_; }
    /// Cpus and nodes that do not drain.
    [[nodiscard]] cluster_changed size() const;
    [[nodiscard]] std::uint64_t lost_after_ms() const;
    [[nodiscard]] node_status status_of(const known_node& n) const;
    /// "node n1 is silent for 7 s; given up at 30 s"
    [[nodiscard]] std::string silence_text(const known_node& n) const;

    /// A node that is new here. A silent one of the same name is lost: it was started again.
    ///   errors  already_exists: another node has that name; of its resources
    known_node& enter(std::uint64_t incarnation, const node_hello& h);
    /// A node is lost: its leases end, and it stands in the list of missing ones.
    ///   left  the node has said goodbye
    void remove(known_node& n, const std::string& why, bool left);
    ///   errors  not_found; invalid_argument: it is there, and cannot be forgotten
    ///   is_remembered  over the node's end, too
    [[nodiscard]] drain_reply drain(const ask_drain& asked, bool is_remembered = true);
    /// A process could not be started on the node, for a reason of the node's own: it rests.
    void failed(known_node& n, const std::string& why);
    /// A process was started on the node: its pauses begin anew.
    void worked(known_node& n);

    /// Looks who is silent, and ends rests.
    void look();
    /// Asks for what is on nodes that drain.
    void empty_draining();

private:
    [[nodiscard]] std::string free_name(const node_hello& h);
    [[nodiscard]] drain_reply drain_missing(const ask_drain& asked);
    [[nodiscard]] duration patience_with(const known_node& n) const;
    void end_rests();

    loop& loop_;
    head_memory& memory_;
    lease_table& leases_;
    node_links& links_;
    node_options options_;
    time_point looked_at_;
    std::map<std::uint64_t, std::unique_ptr<known_node>> nodes_;
    std::uint64_t changes_ = 0;
};

/// No node has this name, with those that there are.
[[nodiscard]] error not_a_node(const node_table& nodes, const std::string& name);
/// What is wrong with its names and labels is wrong at the node: it does not try again.
///   errors  invalid_argument
void check_words(const node_hello& h);

} // namespace skein::cluster::detail

#if SKEIN_HEADER_ONLY
#include <skein/cluster/detail/node_table.ipp>
#endif
