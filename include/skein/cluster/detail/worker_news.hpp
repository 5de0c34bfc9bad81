// SPDX-License-Identifier: Apache-2.0
#pragma once
// What people are told of a driver's workers: that calls wait, and why, and that workers were lost.
// Each thing once, and of many ever fewer.
//
//     worker_news news(head);
//     news.waits(wish, why);                 // of each demand once, until has_room(wish)
//     news.no_nodes(is_waited_for, has_leases); // once, until nodes()

#include <skein/core/config.hpp>
#include <skein/cluster/detail/driver_messages.hpp>
#include <skein/net/address.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <utility>

namespace skein::cluster::detail {

/// A worker that ended and that nobody had asked to.
struct lost_worker {
    std::uint64_t lease = 0, node = 0; ///< the incarnation of its agent; 0: not known
    std::string node_name;
    std::int64_t pid = 0;
    std::string how; ///< it ended; empty: nobody has said so
};

class worker_news {
public:
    explicit worker_news(std::string head) : head_(std::move(head)) {}

    /// No node could hold what was asked for.
    void waits(const want_lease& wish, const std::string& why);
    void has_room(const want_lease& wish);
    /// A node could, but others have had the room for some seconds.
    static void held_up(const std::string& why);
    /// A head has welcomed this driver; one that was started again has no nodes yet.
    void welcomed() noexcept { nodes_return_ = true; }
    /// The cluster has none. `has_leases` of nodes that have gone: they may come back.
    void no_nodes(bool is_waited_for, bool has_leases);
    void nodes() noexcept { said_no_nodes_ = nodes_return_ = false; }
    /// `workers_there`: how many its node had, if that was lost; of one node it is said once.
    void lost(const lost_worker& one, const std::function<std::size_t()>& workers_there);

private:
    std::string head_;
    std::set<std::string> said_waits_; ///< demands, with their labels
    bool nodes_return_ = false;        ///< there are none yet; ours will come
    bool said_no_nodes_ = false;       ///< since the last one went
    std::uint64_t last_lost_node_ = 0; ///< an incarnation
    std::uint64_t lost_nodes_ = 0, lost_workers_ = 0;
};

} // namespace skein::cluster::detail

#if SKEIN_HEADER_ONLY
#include <skein/cluster/detail/worker_news.ipp>
#endif
