// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of net/socket_pair.hpp.

#include <skein/core/error.hpp>

#include <cerrno>
#include <cstring>

#include <sys/socket.h>

#include <fmt/format.h>

namespace skein::net {

SKEIN_INLINE socket_pair make_socket_pair() {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
        throw error(errc::io, fmt::format("socketpair failed: {}", std::strerror(errno)))
            .with_hint(errno == EMFILE ? "raise the limit of open files: ulimit -n" : "");
    return {unique_fd(ends[0]), unique_fd(ends[1])};
}

SKEIN_INLINE bool end_input(int socket) noexcept { return ::shutdown(socket, SHUT_RD) == 0; }
SKEIN_INLINE bool end_both_ways(int socket) noexcept { return ::shutdown(socket, SHUT_RDWR) == 0; }

SKEIN_INLINE task<std::unique_ptr<stream>> connected_network::connect(address) {
    if (!stream_) throw error(errc::closed, "the inherited stream has been taken already");
    co_return std::move(stream_);
}

SKEIN_INLINE std::unique_ptr<listener> connected_network::listen(address) {
    throw error(errc::not_supported, "not supported: listening on an inherited stream");
}

} // namespace skein::net
