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

/// Takes over a connected Unix stream socket, e.g. one end of a socketpair or one inherited from a
/// parent. Owns fd from now on, also when it throws.
///   errors  io (not a socket)
[[nodiscard]] inline std::unique_ptr<stream> adopt_unix_stream(real_loop& on, int fd,
                                                               std::string peer) {
    asio::local::stream_protocol::socket socket(on.context());
    std::error_code fault;
    socket.assign(asio::local::stream_protocol(), fd, fault);
    if (fault) {
        ::close(fd);
        throw code_error(fault, "cannot use an inherited socket to " + peer);
    }
    return std::make_unique<detail::socket_stream<asio::local::stream_protocol>>(std::move(socket),
                                                                                 std::move(peer));
}

} // namespace skein::net
