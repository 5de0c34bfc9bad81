// SPDX-License-Identifier: Apache-2.0
#pragma once
// How busy the nodes of a cluster are, and were: the newest word of each, a history, and the numbers
// of its agent.
//
//     node_loads loads;
//     loads.came("n1");                        // nodes that are there keep their place
//     loads.told("n1", said, unix_seconds);    // once a second, by the head's clock
//     loads.went("n1");                        // its last day stays, while there is room
//     const auto now = loads.usage();

#include <skein/core/config.hpp>
#include <skein/cluster/detail/load_messages.hpp>
#include <skein/cluster/load_history.hpp>
#include <skein/core/metric_registry.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace skein::cluster::detail {

/// By the names of nodes. Moments are seconds since 1970, by one clock: those of nodes differ.
class node_loads {
public:
    static constexpr std::size_t most_nodes = 1024; ///< also those that are gone; 225 KB each

    void came(const std::string& node) { there_.insert(node); }
    void went(const std::string& node) { there_.erase(node); }
    /// A new node takes the place of one that is gone; while there is none, nothing is kept of it.
    void told(const std::string& node, const node_load& said, std::int64_t unix_s);

    /// Also of nodes that are gone.
    [[nodiscard]] std::map<std::string, node_usage> usage() const;
    /// See load_history::since.
    ///   errors  not_found: no node of this name has told it
    [[nodiscard]] load_curve since(const std::string& node, std::int64_t unix_s,
                                   std::size_t most) const;
    /// What agents of nodes that are there have told of themselves.
    [[nodiscard]] std::map<std::string, std::vector<metric_family>> numbers() const;
    /// Grows with each word of a node.
    [[nodiscard]] std::uint64_t changes() const noexcept { return changes_; }

private:
    struct past {
        load_history history;
        proc::host_load last;
        std::uint64_t number = 0; ///< see node_usage
        std::vector<metric_family> numbers;
    };

    void make_room(std::int64_t unix_s);

    std::map<std::string, past> by_name_;
    std::set<std::string> there_;
    std::uint64_t changes_ = 0;
};

/// Numbers from outside without those that Prometheus would not take, and without what is too much.
[[nodiscard]] std::vector<metric_family> checked_numbers(std::vector<metric_family> told);

} // namespace skein::cluster::detail

#if SKEIN_HEADER_ONLY
#include <skein/cluster/detail/node_loads.ipp>
#endif
