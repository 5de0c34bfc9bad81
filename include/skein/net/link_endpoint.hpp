// SPDX-License-Identifier: Apache-2.0
#pragma once
// The accepting side of links: a table that gives returning peers back to their links, and a whole
// server.
//
//     net::link_endpoint server(network, net::address::tcp("127.0.0.1", 0), options);
//     auto serving = server.serve([](net::link::handle l) { return talk(std::move(l)); });
//
// A client of HTTP is refused, as every foreign protocol is, unless on_http() says who takes it: one
// door for peers and for browsers.
//
// A peer is authenticated on every connection. A hello of an older generation than the present
// connection's is refused; one of a newer generation takes its place.

#include <skein/core/cancel.hpp>
#include <skein/core/function.hpp>
#include <skein/core/task.hpp>
#include <skein/net/acceptor.hpp>
#include <skein/net/connection.hpp>
#include <skein/net/link.hpp>
#include <skein/net/network.hpp>
#include <skein/net/options.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

namespace skein::net {

namespace detail {
class link_tables;
}

/// How many links a table takes.
struct link_table_bounds {
    std::size_t most_links = 4096;
    std::size_t most_waiting =
        1024; ///< for their peers to come back; beyond, the oldest is given up
};

/// The links of one accepting process. Links may outlive it; then a broken connection ends them.
class link_table {
public:
    explicit link_table(connection_options options, link_options how = {},
                        link_table_bounds bounds = {});
    link_table(const link_table&) = delete;
    link_table& operator=(const link_table&) = delete;
    ~link_table();

    /// Reads the hello on a fresh connection and answers it.
    ///   result  a new link; nothing when the connection went to a link that is known, or was
    ///           refused
    ///   errors  those of connection::receive; malformed, mismatch, too_large (no hello), timeout
    [[nodiscard]] task<link::handle> admit(connection::handle over);

    /// Of this process, as links tell it to their peers.
    [[nodiscard]] std::uint64_t incarnation() const noexcept;
    [[nodiscard]] std::size_t links() const noexcept;
    /// Links whose peer may come back.
    [[nodiscard]] std::size_t waiting() const noexcept;
    /// Hellos so far that were refused, and those that a link has resumed with.
    [[nodiscard]] std::uint64_t refused() const noexcept;
    [[nodiscard]] std::uint64_t resumed() const noexcept;

private:
    std::shared_ptr<detail::link_tables> tables_;
};

/// Listens and serves links until it is closed or cancelled.
class link_endpoint {
public:
    using handler = unique_function<task<void>(link::handle)>;
    /// A stream that begins as HTTP, what was read of it, and its place at the door: whoever takes
    /// it says place->authenticated() when the client has shown a key; until then it is one of the
    /// strangers, who are few and go for one another.
    using http_handler =
        unique_function<task<void>(std::unique_ptr<stream>, byte_buffer first, admission* place)>;

    /// Binds at once.
    ///   errors  those of network::listen; permission_denied: an address that other hosts can reach
    ///           without a token
    link_endpoint(network& via, const address& at, connection_options options,
                  link_options how = {}, link_table_bounds links = {},
                  acceptor_options bounds = {});
    ~link_endpoint();

    [[nodiscard]] address local() const { return door_.local(); }
    [[nodiscard]] link_table& table() noexcept { return table_; }

    /// What the peers of later connections read in link::peer().extra.
    void introduce(byte_buffer extra) { options_.self.extra = std::move(extra); }

    /// Gives streams that begin as HTTP to `take`, in the scope of serve(); set it before. Its
    /// errors are logged and end its stream only.
    void on_http(http_handler take) { http_ = std::move(take); }

    /// Accepts until close(). Every new link gets a task of `serve_one` in the scope of this call,
    /// and is closed when that ends; an error of one is logged and ends that one only. Returns when
    /// all ended.
    ///   errors  as endpoint::serve
    [[nodiscard]] task<void> serve(handler serve_one);

    /// Stops accepting, and ends streams that are no links, or none yet: neither a stranger that
    /// says nothing nor a client of HTTP keeps anybody from ending. Links that are served go on,
    /// until their connection breaks.
    void close() noexcept {
        door_.close();
        closing_.request();
    }

private:
    static task<void> one(link_endpoint* self, std::unique_ptr<stream> from, admission* place);
    static task<void> one_link(link_endpoint* self, std::unique_ptr<stream> from, byte_buffer first,
                               admission* place);

    connection_options options_;
    acceptor door_;
    link_table table_;
    cancel_source closing_;
    handler handler_;
    http_handler http_;
    std::uint64_t failed_ = 0; ///< links whose handler threw
};

} // namespace skein::net

#if SKEIN_HEADER_ONLY
#include <skein/net/detail/link_endpoint.ipp>
#endif
