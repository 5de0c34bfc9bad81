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

#include <skein/core/task.hpp>
#include <skein/net/network.hpp>
#include <skein/net/real_loop.hpp>

#include <memory>
#include <string>

namespace skein::net {

/// The real world's network. Cheap; one per loop.
class real_network final : public network {
public:
    explicit real_network(real_loop& on) noexcept : loop_(on) {}

    task<std::unique_ptr<stream>> connect(address to) override;
    std::unique_ptr<listener> listen(address at) override;

private:
    real_loop& loop_;
};

/// Takes over a connected Unix stream socket, e.g. one end of a socketpair or one inherited from a
/// parent. Owns fd from now on, also when it throws.
///   errors  io (not a socket)
[[nodiscard]] std::unique_ptr<stream> adopt_unix_stream(real_loop& on, int fd, std::string peer);

} // namespace skein::net

#if SKEIN_HEADER_ONLY
#include <skein/net/detail/real_network.ipp>
#endif
