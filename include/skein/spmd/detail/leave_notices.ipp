// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of spmd/leave_notices.hpp.

#include <skein/core/awaitable.hpp>
#include <skein/core/bytes.hpp>
#include <skein/core/constants.hpp>
#include <skein/core/error.hpp>
#include <skein/core/sleep.hpp>
#include <skein/core/timeout.hpp>
#include <skein/net/address.hpp>
#include <skein/net/network.hpp>
#include <skein/net/stream.hpp>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include <fmt/format.h>

namespace skein::spmd {

namespace detail {

/// "http://host:port/path" in parts; empty host: it is none.
struct http_place {
    std::string host, path = "/";
    std::uint16_t port = 80;
};
SKEIN_INLINE http_place parse_http(const std::string& url) {
    constexpr std::string_view begin = "http://";
    http_place at;
    if (!url.starts_with(begin))
        throw error(errc::invalid_argument, fmt::format("'{}' is no http:// address", url));
    auto rest = std::string_view(url).substr(begin.size());
    const auto slash = rest.find('/');
    if (slash != std::string_view::npos) at.path = std::string(rest.substr(slash));
    const auto where = net::address::parse(
        fmt::format("tcp:{}{}", rest.substr(0, slash),
                    rest.substr(0, slash).find(':') == std::string_view::npos ? ":80" : ""));
    if (!where) throw where.error();
    at.host = where->host;
    at.port = where->port;
    return at;
}

/// The answer's status and body, of which the first 4 KiB are read.
SKEIN_INLINE task<std::pair<int, std::string>> ask_http(net::network* via, const http_place* at,
                                                        std::string request) {
    auto connecting = via->connect(net::address::tcp(at->host, at->port));
    auto stream = co_await connecting;
    const std::array<byte_span, 1> bytes{as_bytes(request)};
    auto writing = stream->write_all(bytes);
    co_await writing;
    std::string all;
    std::array<std::byte, 4096> part{};
    while (all.size() < part.size()) {
        auto reading = stream->read_some(part);
        const auto n = co_await reading;
        if (n == 0) break;
        all.append(reinterpret_cast<const char*>(part.data()), n);
    }
    int status = 0;
    if (all.starts_with("HTTP/1.") && all.size() > 12) status = std::atoi(all.c_str() + 9);
    const auto body = all.find("\r\n\r\n");
    co_return std::pair(status, body == std::string::npos ? std::string() : all.substr(body + 4));
}

/// One question, as EC2 wants it: with a token where it gives one.
SKEIN_INLINE task<bool> is_told_to_go(net::network* via, const http_place* at) {
    auto tokening =
        ask_http(via, at,
                 fmt::format("PUT /latest/api/token HTTP/1.0\r\nHost: {}\r\nContent-Length: 0\r\n"
                             "X-aws-ec2-metadata-token-ttl-seconds: 60\r\n\r\n",
                             at->host));
    const auto token = co_await tokening;
    const auto with = token.first == 200 && token.second.find_first_of("\r\n") == std::string::npos
                          ? fmt::format("X-aws-ec2-metadata-token: {}\r\n", token.second)
                          : std::string();
    auto asking = ask_http(
        via, at, fmt::format("GET {} HTTP/1.0\r\nHost: {}\r\n{}\r\n", at->path, at->host, with));
    const auto answer = co_await asking;
    co_return answer.first == 200;
}

/// Whether one of them is there; which.
SKEIN_INLINE task<std::string> look_for_notice(net::network* via, const leave_notices* signs,
                                               const std::optional<http_place>* at) {
    std::error_code ignored;
    if (!signs->file.empty() && std::filesystem::exists(signs->file, ignored))
        co_return fmt::format("{} is there", signs->file);
    if (!*at) co_return std::string();
    auto asking =
        as_result(with_timeout(is_told_to_go(via, &**at), time_constants::lan().reconnect_most));
    const auto told = co_await asking;
    if (!told && told.error().code() == errc::cancelled) throw told.error();
    co_return told && *told ? fmt::format("{} says so", signs->url) : std::string();
}

} // namespace detail

SKEIN_INLINE void check_leave_notices(const leave_notices& signs) {
    if (!signs.url.empty()) (void)detail::parse_http(signs.url);
}

SKEIN_INLINE task<std::string> until_leave_notice(net::network& via, leave_notices signs) {
    std::optional<detail::http_place> at;
    if (!signs.url.empty()) at = detail::parse_http(signs.url);
    for (;;) {
        auto looking = detail::look_for_notice(&via, &signs, &at);
        auto found = co_await looking;
        if (!found.empty()) co_return found;
        co_await sleep_for(signs.every);
    }
}

} // namespace skein::spmd
