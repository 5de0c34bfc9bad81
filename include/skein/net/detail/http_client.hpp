// SPDX-License-Identifier: Apache-2.0
#pragma once
// What an HTTP server keeps of one connection, and what it decides about one request.

#include <skein/core/bytes.hpp>
#include <skein/core/loop.hpp>
#include <skein/net/detail/http_places.hpp>
#include <skein/net/http_server.hpp>

#include <memory>
#include <optional>
#include <utility>

namespace skein::net {

/// One connection.
struct http_server::client {
    client(http_server& of, std::unique_ptr<stream> over, http_peer who, admission* at)
        : server(of), with(std::move(over)), parser(of.how_.bounds), peer(std::move(who)),
          place(at), here(*of.places_) {}
    client(const client&) = delete;
    client& operator=(const client&) = delete;
    ~client() = default;

    void does(detail::http_doing what) noexcept { here.does(what, loop::current().now()); }

    http_server& server;
    std::unique_ptr<stream> with;
    wire::http_parser parser;
    http_peer peer;
    admission* place;
    byte_buffer into = byte_buffer(8 << 10);
    bool fresh = true;       ///< no request has come yet
    bool open = true;        ///< another request may follow
    bool gone = false;       ///< nothing can be told any more
    detail::http_place here; ///< among the server's connections
};

/// What becomes of a request whose header is there.
struct http_server::verdict {
    std::optional<wire::http_response> reply{}; ///< said without a handler
    bool is_refusal = false;
    bool has_key = false;
    bool is_head = false; ///< the reply has no body, and what its length would be is not known
    http_right right = http_right::open; ///< what the client is allowed
    http_router::match to{};
};

} // namespace skein::net
