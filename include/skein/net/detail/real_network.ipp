// SPDX-License-Identifier: Apache-2.0
#pragma once
// Making sockets: connect, listen, and what may go wrong with either.

#include <skein/core/error.hpp>
#include <skein/core/event.hpp>
#include <skein/net/detail/socket_stream.hpp>
#include <skein/net/system_error.hpp>
#include <skein/net/use_task.hpp>

#include <cerrno>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/core.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

namespace skein::net {
namespace detail {

SKEIN_INLINE void close_on_exec(int fd) noexcept { ::fcntl(fd, F_SETFD, FD_CLOEXEC); }

SKEIN_INLINE std::string host_text(const asio::ip::address& a) {
    // What came over IPv4 to a socket for both.
    if (a.is_v6() && a.to_v6().is_v4_mapped())
        return asio::ip::make_address_v4(asio::ip::v4_mapped, a.to_v6()).to_string();
    return a.to_string();
}

SKEIN_INLINE std::string endpoint_text(const asio::ip::tcp::endpoint& e) {
    return to_string(address::tcp(host_text(e.address()), e.port()));
}

/// A name look-up under way. The system's look-up cannot be interrupted: who waits for it may
/// leave, then it ends alone and its handler owns all of this.
struct name_lookup {
    explicit name_lookup(asio::io_context& on) : resolver(on) {}
    asio::ip::tcp::resolver resolver;
    asio::ip::tcp::resolver::results_type found;
    std::error_code code;
    event done;
};

SKEIN_INLINE task<std::vector<asio::ip::tcp::endpoint>> resolve(real_loop* on, address name) {
    const auto lookup = std::make_shared<name_lookup>(on->context());
    lookup->resolver.async_resolve(
        name.host, std::to_string(name.port),
        [lookup](const std::error_code& code, asio::ip::tcp::resolver::results_type found) {
            lookup->code = code;
            lookup->found = std::move(found);
            lookup->done.set();
        });
    auto ended = lookup->done.wait();
    co_await ended;
    if (lookup->code) {
        throw error(errc::not_found, fmt::format("connect {}: cannot resolve the name '{}'",
                                                 to_string(name), name.host))
            .with_cause(lookup->code.message())
            .with_hint("check the spelling, or give the numeric address");
    }
    std::vector<asio::ip::tcp::endpoint> candidates;
    for (const auto& entry : lookup->found) candidates.push_back(entry.endpoint());
    co_return candidates;
}

SKEIN_INLINE task<std::unique_ptr<stream>> connect_tcp(real_loop* on, address to) {
    std::vector<asio::ip::tcp::endpoint> candidates;
    std::error_code code;
    const auto numeric = asio::ip::make_address(to.host, code);
    if (!code) {
        candidates.emplace_back(numeric, to.port);
    } else {
        auto looking = resolve(on, to);
        candidates = co_await looking;
        // What listens there, whatever the files of this host say.
        if (to.host == "localhost")
            candidates.emplace_back(asio::ip::make_address(own_loopback()), to.port);
    }

    std::optional<error> last;
    for (const auto& candidate : candidates) {
        asio::ip::tcp::socket socket(on->context());
        if (const auto failed = open_socket(socket, candidate.protocol())) {
            last = code_error(failed, "cannot make a socket");
            continue;
        }
        auto done = co_await socket.async_connect(candidate, use_task_result);
        if (done) {
            co_return std::make_unique<socket_stream<asio::ip::tcp>>(std::move(socket),
                                                                     to_string(to));
        }
        last = done.error();
    }
    throw error(last ? last->code() : errc::not_found, "connect " + to_string(to) + " failed")
        .with_cause(last ? last->cause() : "the name has no address")
        .with_hint("is the program there running, and is this the right port?");
}

/// The socket address of a unix kind; throws invalid_argument when it does not fit.
SKEIN_INLINE asio::local::stream_protocol::endpoint unix_endpoint(const address& a) {
    std::string path = a.host;
    if (a.kind == scheme::unix_abstract) path[0] = '\0';
    constexpr std::size_t most = sizeof(sockaddr_un::sun_path) - 1;
    if (path.size() > most) {
        throw error(errc::invalid_argument,
                    fmt::format("{}: a socket path may have {} bytes, this one has {}",
                                to_string(a), most, path.size()))
            .with_hint("use a shorter folder, or unix-abstract:@name");
    }
    return asio::local::stream_protocol::endpoint(path);
}

SKEIN_INLINE task<std::unique_ptr<stream>> connect_unix(real_loop* on, address to) {
    const auto endpoint = unix_endpoint(to);
    asio::local::stream_protocol::socket socket(on->context());
    if (const auto failed = open_socket(socket, endpoint.protocol()))
        throw code_error(failed, "connect " + to_string(to) + " failed");
    auto done = co_await socket.async_connect(endpoint, use_task_result);
    if (!done) {
        const errc kind =
            done.error().code() == errc::not_found ? errc::refused : done.error().code();
        throw error(kind, "connect " + to_string(to) + " failed")
            .with_cause(done.error().cause())
            .with_hint("is the program there running?");
    }
    co_return std::make_unique<socket_stream<asio::local::stream_protocol>>(std::move(socket),
                                                                            to_string(to));
}

/// Opens, binds and listens; throws with what the user can do.
template <class Protocol>
typename Protocol::acceptor bound(real_loop& on, const typename Protocol::endpoint& at,
                                  const address& shown, const char* in_use_hint) {
    typename Protocol::acceptor acceptor(on.context());
    std::error_code code;
    const auto check = [&](const char* step) {
        if (!code) return;
        error e(errc_of(code), fmt::format("listen {}: {} failed", to_string(shown), step));
        e.with_cause(code.message());
        if (code.value() == EADDRINUSE) e.with_hint(in_use_hint);
        if (code.value() == EACCES) e.with_hint("ports below 1024 and foreign folders need rights");
        if (code.value() == EADDRNOTAVAIL)
            e.with_hint(shown.is_loopback() ? "its loopback has no such address: ip address show lo"
                                            : "no interface of this host has that address");
        throw e;
    };
    acceptor.open(at.protocol(), code);
    check("open");
    close_on_exec(acceptor.native_handle());
    if constexpr (std::is_same_v<Protocol, asio::ip::tcp>) {
        acceptor.set_option(asio::socket_base::reuse_address(true), code);
        check("SO_REUSEADDR");
        if (at.address().is_v6() && at.address().is_unspecified()) {
            acceptor.set_option(asio::ip::v6_only(false), code);
            check("IPV6_V6ONLY");
        }
    }
    acceptor.bind(at, code);
    check("bind");
    acceptor.listen(asio::socket_base::max_listen_connections, code);
    check("listen");
    return acceptor;
}

inline constexpr const char* port_in_use =
    "another program, or another run of this one, holds the port; choose another, or 0 for any";

/// One socket for IPv6 and IPv4; IPv4 alone on a host without IPv6.
SKEIN_INLINE std::unique_ptr<listener> listen_everywhere(real_loop& on, address at) {
    const auto listening = [&](asio::ip::tcp::acceptor acceptor) {
        at.port = acceptor.local_endpoint().port();
        return std::make_unique<socket_listener<asio::ip::tcp>>(std::move(acceptor), at);
    };
    try {
        const asio::ip::tcp::endpoint all(asio::ip::address_v6::any(), at.port);
        return listening(bound<asio::ip::tcp>(on, all, at, port_in_use));
    } catch (const error& e) {
        // No such family, or no address of it.
        if (e.code() != errc::invalid_argument && e.code() != errc::not_found) throw;
    }
    const asio::ip::tcp::endpoint all(asio::ip::address_v4::any(), at.port);
    return listening(bound<asio::ip::tcp>(on, all, at, port_in_use));
}

SKEIN_INLINE std::unique_ptr<listener> listen_tcp(real_loop& on, address at) {
    std::error_code code;
    if (at.host == "*") return listen_everywhere(on, std::move(at));
    const std::string host = at.host == "localhost" ? own_loopback() : at.host;
    auto ip = asio::ip::make_address(host, code);
    if (code) { // listening happens at the edge of a program: a blocking look-up is fine here
        asio::ip::tcp::resolver resolver(on.context());
        const auto found = resolver.resolve(host, std::to_string(at.port), code);
        if (code || found.empty()) {
            throw error(errc::not_found,
                        fmt::format("listen {}: cannot resolve '{}'", to_string(at), host))
                .with_hint("give a numeric address such as 127.0.0.1 or 0.0.0.0");
        }
        ip = found.begin()->endpoint().address();
    }
    auto acceptor = bound<asio::ip::tcp>(on, asio::ip::tcp::endpoint(ip, at.port), at, port_in_use);
    at.port = acceptor.local_endpoint().port();
    return std::make_unique<socket_listener<asio::ip::tcp>>(std::move(acceptor), std::move(at));
}

/// Removes a socket file whose listener is gone; throws when somebody is there, or no socket.
SKEIN_INLINE void take_over_path(const address& at) {
    struct stat info{};
    if (::lstat(at.host.c_str(), &info) != 0) return;
    if (!S_ISSOCK(info.st_mode)) {
        throw error(errc::already_exists,
                    fmt::format("listen {}: a file is there that is not a socket", to_string(at)))
            .with_hint("choose another path");
    }
    const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) throw system_error(errno, "socket failed");
    const auto endpoint = unix_endpoint(at);
    const int rc = ::connect(fd, endpoint.data(), static_cast<socklen_t>(endpoint.size()));
    const int why = rc == 0 ? 0 : errno;
    ::close(fd);
    if (why != ECONNREFUSED && why != ENOENT) {
        throw error(errc::already_exists,
                    fmt::format("listen {}: the path is in use", to_string(at)))
            .with_hint("another program listens there; choose another path");
    }
    ::unlink(at.host.c_str());
}

SKEIN_INLINE std::unique_ptr<listener> listen_unix(real_loop& on, address at) {
    const auto endpoint = unix_endpoint(at);
    if (at.kind == scheme::unix_path) take_over_path(at);
    auto acceptor = bound<asio::local::stream_protocol>(
        on, endpoint, at, "another program listens there; choose another path or name");
    return std::make_unique<socket_listener<asio::local::stream_protocol>>(std::move(acceptor),
                                                                           std::move(at));
}

} // namespace detail

SKEIN_INLINE task<std::unique_ptr<stream>> real_network::connect(address to) {
    switch (to.kind) {
    case scheme::tcp: return detail::connect_tcp(&loop_, std::move(to));
    case scheme::unix_path:
    case scheme::unix_abstract: return detail::connect_unix(&loop_, std::move(to));
    case scheme::sim: break;
    }
    throw error(errc::not_supported, "connect " + to_string(to) + ": not a real address");
}

SKEIN_INLINE std::unique_ptr<listener> real_network::listen(address at) {
    switch (at.kind) {
    case scheme::tcp: return detail::listen_tcp(loop_, at);
    case scheme::unix_path:
    case scheme::unix_abstract: return detail::listen_unix(loop_, at);
    case scheme::sim: break;
    }
    throw error(errc::not_supported, "listen " + to_string(at) + ": not a real address");
}

SKEIN_INLINE std::unique_ptr<stream> adopt_unix_stream(real_loop& on, int fd, std::string peer) {
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
