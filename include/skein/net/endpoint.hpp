// SPDX-License-Identifier: Apache-2.0
#pragma once
// The listening side of connections as a whole: an acceptor, the handshake, one task per
// connection.
//
//     net::endpoint server(network, net::address::tcp("127.0.0.1", 0), options);
//     auto serving = server.serve([](net::connection::handle c) { return talk(std::move(c)); });

#include <skein/core/function.hpp>
#include <skein/core/task.hpp>
#include <skein/net/acceptor.hpp>
#include <skein/net/connection.hpp>
#include <skein/net/network.hpp>
#include <skein/net/options.hpp>

#include <cstdint>
#include <memory>

namespace skein::net {

/// Listens and serves until it is closed or cancelled.
class endpoint {
public:
    using handler = unique_function<task<void>(connection::handle)>;

    /// Binds at once.
    ///   errors  those of network::listen; permission_denied: an address that other hosts can reach
    ///           without a token
    endpoint(network& via, const address& at, connection_options options,
             acceptor_options bounds = {});
    ~endpoint();

    [[nodiscard]] address local() const { return door_.local(); }

    /// Accepts until close(). Every connection gets a task of `serve_one` in the scope of this
    /// call; an error of one (handshake or handler) is logged and ends that one only, whatever its
    /// code. Streams that cannot be accepted are logged, too, and accepting goes on. Returns when
    /// all ended.
    ///   errors  cancelled (then the tasks are cancelled too); what a listener cannot get over
    ///           (invalid_argument, not_supported)
    [[nodiscard]] task<void> serve(handler serve_one);

    /// Stops accepting, and ends handshakes on the way; connections that are served go on.
    void close() noexcept { door_.close(); }

    /// Streams that were not authenticated, and connections served so far.
    [[nodiscard]] std::uint64_t refused() const noexcept { return door_.refused(); }
    [[nodiscard]] std::uint64_t accepted() const noexcept { return door_.authenticated(); }

private:
    static task<void> one(endpoint* self, std::unique_ptr<stream> from, admission* place);

    connection_options options_;
    acceptor door_;
    handler handler_;
};

} // namespace skein::net

#if SKEIN_HEADER_ONLY
#include <skein/net/detail/endpoint.ipp>
#endif
