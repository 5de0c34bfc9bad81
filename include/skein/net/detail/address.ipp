// SPDX-License-Identifier: Apache-2.0
#pragma once
// The text form of addresses, and what it takes to read one.

#include <skein/core/error.hpp>

#include <utility>

#include <fmt/core.h>
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

namespace skein::net {

SKEIN_INLINE bool address::is_loopback() const noexcept {
    if (kind != scheme::tcp || host == "localhost") return true;
    in_addr v4{};
    if (::inet_pton(AF_INET, host.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
    in6_addr v6{};
    return ::inet_pton(AF_INET6, host.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

namespace detail {

/// Whether a program can listen there.
SKEIN_INLINE bool has_loopback(int family) {
    const int fd = ::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return false;
    sockaddr_in v4{};
    v4.sin_family = AF_INET;
    v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    sockaddr_in6 v6{};
    v6.sin6_family = AF_INET6;
    v6.sin6_addr = in6addr_loopback;
    const bool is_v4 = family == AF_INET;
    const int got = is_v4 ? ::bind(fd, reinterpret_cast<const sockaddr*>(&v4), sizeof v4)
                          : ::bind(fd, reinterpret_cast<const sockaddr*>(&v6), sizeof v6);
    ::close(fd);
    return got == 0;
}

} // namespace detail

SKEIN_INLINE const std::string& own_loopback() {
    static const std::string mine =
        detail::has_loopback(AF_INET) || !detail::has_loopback(AF_INET6) ? "127.0.0.1" : "::1";
    return mine;
}

SKEIN_INLINE address address::make(scheme kind, std::string host, std::uint16_t port) {
    address a;
    a.kind = kind;
    a.host = std::move(host);
    a.port = port;
    return a;
}
SKEIN_INLINE address address::tcp(std::string host, std::uint16_t port) {
    return make(scheme::tcp, std::move(host), port);
}
SKEIN_INLINE address address::any(std::uint16_t port) { return tcp("*", port); }
SKEIN_INLINE address address::unix_socket(std::string path) {
    return make(scheme::unix_path, std::move(path), 0);
}
SKEIN_INLINE address address::abstract_unix(std::string name) {
    if (!name.starts_with('@')) name.insert(name.begin(), '@');
    return make(scheme::unix_abstract, std::move(name), 0);
}
SKEIN_INLINE address address::sim(std::string host, std::uint16_t port) {
    return make(scheme::sim, std::move(host), port);
}

SKEIN_INLINE std::string to_string(const address& a) {
    switch (a.kind) {
    case scheme::tcp:
        return a.host.find(':') != std::string::npos ? fmt::format("tcp:[{}]:{}", a.host, a.port)
                                                     : fmt::format("tcp:{}:{}", a.host, a.port);
    case scheme::unix_path: return "unix:" + a.host;
    case scheme::unix_abstract: return "unix-abstract:" + a.host;
    case scheme::sim: return fmt::format("sim:{}:{}", a.host, a.port);
    }
    return "?";
}

SKEIN_INLINE result<address> address::parse(std::string_view text) {
    const auto bad = [&](std::string_view why) {
        return error(errc::invalid_argument, fmt::format("address '{}': {}", text, why))
            .with_hint("write tcp:host:port, unix:/path or unix-abstract:@name");
    };
    const auto colon = text.find(':');
    if (colon == std::string_view::npos) return bad("no scheme");
    const auto name = text.substr(0, colon);
    auto rest = text.substr(colon + 1);
    if (name == "unix") {
        if (rest.empty()) return bad("empty path");
        return address::unix_socket(std::string(rest));
    }
    if (name == "unix-abstract") {
        if (rest.empty() || rest == "@") return bad("empty name");
        return address::abstract_unix(std::string(rest));
    }
    if (name != "tcp" && name != "sim") return bad("unknown scheme");

    const auto last = rest.rfind(':');
    if (last == std::string_view::npos) return bad("no port");
    auto host = rest.substr(0, last);
    const auto digits = rest.substr(last + 1);
    if (host.starts_with('[') && host.ends_with(']')) {
        host = host.substr(1, host.size() - 2);
    } else if (host.find(':') != std::string_view::npos) {
        return bad("an IPv6 address needs brackets");
    }
    if (host.empty()) return bad("empty host");
    if (digits.empty() || digits.size() > 5) return bad("the port is not a number in 0..65535");
    unsigned port = 0;
    for (const char c : digits) {
        if (c < '0' || c > '9') return bad("the port is not a number in 0..65535");
        port = port * 10 + static_cast<unsigned>(c - '0');
    }
    if (port > 65535) return bad("the port is not a number in 0..65535");
    return make(name == "tcp" ? scheme::tcp : scheme::sim, std::string(host),
                static_cast<std::uint16_t>(port));
}

} // namespace skein::net
