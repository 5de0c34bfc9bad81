// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a person or a script asks of a cluster: who is there, to drain a node, to stop all of it.
//
//     cluster::tool_options how;
//     how.head = cluster::parse_head_address("node-1");
//     how.secret = cluster::find_token("");
//     const auto now = cluster::get_status(how);             // blocks; on a loop: ask_for_status
//
// Each function is one short session with the head; nothing is kept between two of them.

#include <skein/core/config.hpp>
#include <skein/cluster/messages.hpp>
#include <skein/core/error.hpp>
#include <skein/core/task.hpp>
#include <skein/core/time.hpp>
#include <skein/net/address.hpp>
#include <skein/net/token.hpp>

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace skein::net {
class network;
}

namespace skein::cluster {

/// Whose head a tool asks, and as whom.
struct tool_options {
    net::address head{};
    net::token secret{};
    std::string name = "tool", host{};           ///< for the head's log; an empty host is found out
    std::int64_t pid = 0;                        ///< 0: of this process
    time_span within = std::chrono::seconds(10); ///< to reach the head, and for its answer
    /// When no head answers, or one ends before it has answered, another one is waited for so long.
    time_span patience{};
    /// Told once, when that has taken a second; `most`: how long it is tried.
    std::function<void(const error& why, time_span most)> on_wait{};
};

/// What is there now; `past`: with the drivers that were there.
///   errors  those of net::link::connect with the head's address: refused, timeout (nobody
///           answers), permission_denied (another token), malformed (no head); mismatch (the status
///           of a head of another release)
[[nodiscard]] task<cluster_status> ask_for_status(net::network& via, tool_options how,
                                                  bool past = false);
/// A draining node gets no new workers, and drivers are asked to give back those that it has. `on`
/// false: it takes workers again. Of a node that is missing: when it comes. The head has it in its
/// log before it answers, or says why not.
///   errors  those of ask_for_status; not_found: no node has this name
[[nodiscard]] task<drain_reply> ask_to_drain(net::network& via, tool_options how, std::string node,
                                             bool on = true);
/// How a node is to be emptied.
struct drain_wish {
    std::string node{};
    std::optional<time_span> within{}; ///< nothing: what runs there may take as long as it takes
    bool force = false;                ///< then what is left there is ended
};
/// The same, by a deadline: drivers hear of it, trainings start elsewhere, and entry processes of
/// jobs are told to end in time for their grace, where others have room for them. Asked once more,
/// the new deadline counts. The answer lists all that is there, with what becomes of it.
///   errors  those of ask_to_drain
[[nodiscard]] task<drain_reply> ask_to_drain(net::network& via, tool_options how, drain_wish what);
/// How far the drain of a node has come; nothing changes.
///   errors  those of ask_to_drain
[[nodiscard]] task<drain_reply> ask_about_drain(net::network& via, tool_options how,
                                                std::string node);
/// A node that is missing is no more remembered.
///   errors  those of ask_to_drain; invalid_argument: it is there
[[nodiscard]] task<drain_reply> ask_to_forget(net::network& via, tool_options how,
                                              std::string node);
/// Ends the cluster: nodes end their workers and leave, drivers' calls fail, the head returns.
///   errors  those of ask_for_status
[[nodiscard]] task<stop_reply> ask_to_stop(net::network& via, tool_options how);

/// Ends a namespace: its space server, and with that all of its actors. Calls of these fail and say
/// so.
///   errors  those of ask_for_status; not_found: there is no such namespace
[[nodiscard]] task<stop_space_reply> ask_to_stop_space(net::network& via, tool_options how,
                                                       std::string space);

/// The same for programs without a loop: they block.
[[nodiscard]] cluster_status get_status(const tool_options& how, bool past = false);
/// ask_to_drain(), blocking.
[[nodiscard]] drain_reply drain_node(const tool_options& how, const std::string& node,
                                     bool on = true);
/// The same, by a deadline.
[[nodiscard]] drain_reply drain_node(const tool_options& how, const drain_wish& what);
/// ask_about_drain(), blocking.
[[nodiscard]] drain_reply look_at_drain(const tool_options& how, const std::string& node);
/// ask_to_forget(), blocking.
drain_reply forget_node(const tool_options& how, const std::string& node);
/// ask_to_stop(), blocking.
stop_reply stop_cluster(const tool_options& how);
/// ask_to_stop_space(), blocking.
stop_space_reply stop_space(const tool_options& how, const std::string& space);

} // namespace skein::cluster

#if SKEIN_HEADER_ONLY
#include <skein/cluster/detail/tools.ipp>
#endif
