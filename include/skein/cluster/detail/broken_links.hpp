// SPDX-License-Identifier: Apache-2.0
#pragma once
// Links of workers and space clients, of which some are broken: how long one may be before it
// counts as lost.
//
// A worker that does not come back may compute: then its host says that it is there still. A space
// client has nobody who tells of it, and is given up after as long.
//
//     broken_links links(loop, network, times);
//     scope.spawn(links.watch(&stopping));
//     links.add_worker(lease, wire);          // until remove_worker(): aborted when it is lost

#include <skein/core/config.hpp>
#include <skein/core/constants.hpp>
#include <skein/core/event.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/task.hpp>
#include <skein/core/time.hpp>
#include <skein/net/link.hpp>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace skein {
class loop;
}

namespace skein::net {
class network;
}

namespace skein::cluster::detail {

/// Belongs to one loop.
class broken_links {
public:
    /// All of them must outlive it.
    broken_links(loop& on, net::network& via, const time_constants& times)
        : on_loop_(on), network_(via), times_(times) {}

    /// Looks at all links until `stopping` is set and what was asked of hosts is answered.
    [[nodiscard]] task<void> watch(event* stopping) { return watch_all(this, stopping); }
    /// The cluster has gone, so nobody tells how a worker has ended: a broken link is not waited
    /// for.
    void lose_cluster() noexcept { has_cluster_ = false; }

    void add_worker(std::uint64_t lease, net::link::handle wire) {
        workers_[lease].wire = std::move(wire);
    }
    void remove_worker(std::uint64_t lease) { workers_.erase(lease); }
    void add_client(net::link::handle wire) { clients_.push_back({std::move(wire), {}}); }
    void remove_client(const net::link::handle& wire) {
        std::erase_if(clients_, [&](const auto& one) { return one.wire == wire; });
    }

private:
    struct watched {
        net::link::handle wire;
        std::optional<time_point> broken_since;

        /// Whether the link has been broken for `patience` or longer.
        [[nodiscard]] bool is_broken_for(duration patience, time_point now);
    };

    static task<void> watch_all(broken_links* self, event* stopping);
    static task<void> look(broken_links* self, event* stopping, scope* asking);
    static task<void> ask_host(broken_links* self, std::uint64_t lease);

    loop& on_loop_;
    net::network& network_;
    const time_constants& times_;
    std::map<std::uint64_t, watched> workers_; ///< by lease
    std::vector<watched> clients_;
    bool has_cluster_ = true;
};

} // namespace skein::cluster::detail

#if SKEIN_HEADER_ONLY
#include <skein/cluster/detail/broken_links.ipp>
#endif
