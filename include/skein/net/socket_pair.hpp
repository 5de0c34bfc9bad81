// SPDX-License-Identifier: Apache-2.0
#pragma once
// Two connected sockets for two processes of one host: nothing listens, nobody else can connect.
//
//     auto pair = net::make_socket_pair();
//     start_child_with(pair.theirs.get());                     // it is close-on-exec here
//     auto stream = net::adopt_unix_stream(loop, pair.ours.release(), "the child");

#include <skein/core/unique_fd.hpp>
#include <skein/net/network.hpp>

#include <memory>
#include <utility>

namespace skein::net {

/// Both ends of a connected stream; close-on-exec.
struct socket_pair {
    unique_fd ours, theirs;
};

///   errors  io: the process has no descriptors left
[[nodiscard]] socket_pair make_socket_pair();

/// Puts an end behind the last byte that has arrived: what the other side has sent can still be
/// read, then the stream ends, whichever process still holds the other end. False: it is no socket.
bool end_input(int socket) noexcept;
/// The same, and an end behind the last byte that was sent: the other side hears it, whichever process
/// still holds this end.
bool end_both_ways(int socket) noexcept;

/// A network of one stream that is connected already: the first connect() gives it, whatever the
/// address.
class connected_network final : public network {
public:
    explicit connected_network(std::unique_ptr<stream> s) noexcept : stream_(std::move(s)) {}
    task<std::unique_ptr<stream>> connect(address to) override;
    ///   errors  not_supported
    std::unique_ptr<listener> listen(address at) override;

private:
    std::unique_ptr<stream> stream_;
};

} // namespace skein::net

#if SKEIN_HEADER_ONLY
#include <skein/net/detail/socket_pair.ipp>
#endif
