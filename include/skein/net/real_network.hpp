// SPDX-License-Identifier: Apache-2.0
#pragma once
// TCP and Unix sockets behind net::network.
//
//     net::real_loop loop;
//     net::real_network network(loop);
//     auto listener = network.listen(net::address::tcp("127.0.0.1", 0));
//
// TCP gets TCP_NODELAY; a Unix path is removed when its listener closes, and taken over when nobody
// listens there any more. Streams and listeners must not outlive the loop.

#include <skein/net/detail/socket_stream.hpp>
#include <skein/net/network.hpp>
#include <skein/net/real_loop.hpp>

#include <memory>

namespace skein::net {

/// The real world's network. Cheap; one per loop.
class real_network final : public network {
public:
    explicit real_network(real_loop& on) noexcept : loop_(on) {}

    task<std::unique_ptr<stream>> connect(address to) override {
        switch (to.kind) {
        case scheme::tcp: return detail::connect_tcp(&loop_, std::move(to));
        case scheme::unix_path:
        case scheme::unix_abstract: return detail::connect_unix(&loop_, std::move(to));
        case scheme::sim: break;
        }
        throw error(errc::not_supported, "connect " + to_string(to) + ": not a real address");
    }

    std::unique_ptr<listener> listen(address at) override {
        switch (at.kind) {
        case scheme::tcp: return detail::listen_tcp(loop_, at);
        case scheme::unix_path:
        case scheme::unix_abstract: return detail::listen_unix(loop_, at);
        case scheme::sim: break;
        }
        throw error(errc::not_supported, "listen " + to_string(at) + ": not a real address");
    }

private:
    real_loop& loop_;
};

} // namespace skein::net
