// SPDX-License-Identifier: Apache-2.0
#pragma once
// The head's page at a port of this host: each connection of a browser travels to the head inside of
// a link, which both sides have proven the cluster's token for. So the page is as near as on the
// head's own host, whatever lies between, and no port of the head but the one is used.
//
//     cluster::page_forward page(loop, network, how, 7117);   // that port, or another one
//     print("http://{}/", to_string(page.local()));
//     co_await page.serve();                                   // until stop()
//
// A head that goes away ends the connections; the next one finds it again.

#include <skein/core/config.hpp>
#include <skein/cluster/tools.hpp>
#include <skein/core/cancel.hpp>
#include <skein/core/task.hpp>
#include <skein/net/address.hpp>

#include <cstdint>
#include <memory>

namespace skein {
class loop;
}

namespace skein::net {
class listener;
class network;
class stream;
} // namespace skein::net

namespace skein::cluster {

/// Belongs to one loop. Its serve() must have ended before it is destroyed.
class page_forward {
public:
    /// Listens at once, at the loopback address alone.
    ///   port    that is tried first; if it is taken, or 0, the system chooses
    ///   errors  those of network::listen
    page_forward(net::network& via, tool_options how, std::uint16_t port);
    page_forward(const page_forward&) = delete;
    page_forward& operator=(const page_forward&) = delete;
    ~page_forward();

    [[nodiscard]] net::address local() const;
    /// Until stop(). What fails of one connection ends that one.
    ///   errors  cancelled
    [[nodiscard]] task<void> serve();
    void stop() noexcept;

private:
    static task<void> serve_each(page_forward* self);
    static task<void> serve_one(page_forward* self, std::shared_ptr<net::stream> browser);

    net::network& network_;
    tool_options how_;
    std::unique_ptr<net::listener> door_;
    cancel_source stopping_;
};

} // namespace skein::cluster

#if SKEIN_HEADER_ONLY
#include <skein/cluster/detail/page_forward.ipp>
#endif
