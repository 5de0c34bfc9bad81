// SPDX-License-Identifier: Apache-2.0
#pragma once
// Answers HTTP/1.1 on streams that somebody else has accepted: with routes, keys, and the rules that
// keep web pages of strangers out.
//
//     net::http_server web(std::move(routes), how);
//     auto serving = door.serve([&](std::unique_ptr<net::stream> s, net::admission* place) {
//         return web.serve(std::move(s), {}, place);     // door: a net::acceptor
//     });
//     print("http://{}{}", address, web.login_link(net::http_right::view));
//
// Every request passes, in this order: Host is a name of this server; Origin, where there is one, is
// this server; the key (`Authorization: Bearer`, or the cookie of a login link) on every path and
// method that is not open; the path is there; the method is; the key allows it; what changes
// something comes from this host. Only then its body is read. Refusals are JSON:
// {"code", "message", "cause", "hint"}. Part of the component skein::http.
//
// Handlers work in turns (http_turns.hpp): the next request of a connection is looked at when the
// answer before has been taken, keys take turns, and the loop has time for all else. When all places
// are taken, an idle connection or the stream of events that loses least goes for a newcomer.

#include <skein/core/bytes.hpp>
#include <skein/core/task.hpp>
#include <skein/core/time.hpp>
#include <skein/net/http_router.hpp>
#include <skein/net/http_turns.hpp>
#include <skein/net/stream.hpp>
#include <skein/wire/http.hpp>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace skein {
class scope;
}

namespace skein::net {

class admission;
namespace detail {
class http_places;
}

/// Secrets of this server; an empty one lets nobody in.
struct http_keys {
    std::string view{};   ///< http_right::view
    std::string submit{}; ///< http_right::change, and so view
};

/// How a server answers.
struct http_server_options {
    http_keys keys{};
    std::string cluster{}; ///< its id: letters, digits, - and _; cookies do not know ports
    /// Names in Host besides localhost, 127.0.0.1 and [::1]; without a port, or with the only one.
    std::vector<std::string> hosts{};
    wire::http_limits bounds{};
    /// That have shown a key; strangers at a door are bounded by its places, and take none of these.
    /// Without a door: all.
    std::size_t most_connections = 256;
    std::size_t kept_to_change = 32; ///< of them, which only http_right::change may have
    std::size_t most_streams = 64;   ///< of events, of one key; then its oldest one ends
    time_span header_within = std::chrono::seconds(5); ///< from its first byte
    time_span idle = std::chrono::seconds(30);         ///< between requests
    time_span body_within = std::chrono::seconds(30);
    time_span answer_within = std::chrono::seconds(60); ///< a handler, then it is cancelled
    time_span write_within = std::chrono::seconds(30);  ///< a response or an event
    time_span heartbeat = std::chrono::seconds(10);     ///< between events that do not come
    time_span place_within =
        std::chrono::seconds(2); ///< for somebody to go, where all are answered
    time_span login_within = std::chrono::minutes(5); ///< how long a login link is good
};

/// Who is at the other end of a stream.
[[nodiscard]] http_peer peer_of(const stream& of);

/// Routes and what is shared by the connections. Belongs to one loop; outlives its serve() calls.
class http_server {
public:
    /// Adds GET /healthz and GET /login.
    ///   errors  invalid_argument: a cluster id that is no cookie's name, a key with spaces
    http_server(http_router routes, http_server_options how);
    http_server(const http_server&) = delete;
    http_server& operator=(const http_server&) = delete;
    ~http_server();

    /// Answers one client until it leaves, is idle for too long or breaks a rule.
    ///   first   what was read of the stream already
    ///   peer    who it is; by default what the stream tells
    ///   place   of the stream at its acceptor: it hears when a key was right
    ///   errors  cancelled; what the client does wrong is none
    [[nodiscard]] task<void> serve(std::unique_ptr<stream> with, byte_buffer first,
                                   admission* place = nullptr);
    [[nodiscard]] task<void> serve(std::unique_ptr<stream> with, byte_buffer first, http_peer peer,
                                   admission* place = nullptr);

    /// A path that gives the browser which opens it a cookie with that right, once.
    ///   errors  invalid_argument: the server has no key for it
    [[nodiscard]] std::string login_link(http_right right);

    [[nodiscard]] std::vector<http_router::route> routes() const { return routes_.routes(); }
    /// As most_connections counts them.
    [[nodiscard]] std::size_t connections() const noexcept;
    /// Requests so far that a handler was asked for, and those that were refused before.
    [[nodiscard]] std::uint64_t answered() const noexcept { return answered_; }
    [[nodiscard]] std::uint64_t refused() const noexcept { return refused_; }

private:
    struct client;
    struct verdict;
    struct login {
        std::string once;
        http_right right;
        time_point until;
    };

    static task<void> talk(client* c);
    static task<void> say_full(client* c);
    static task<bool> take_place(client* c, http_right right);
    static task<void> one_request(client* c);
    static task<bool> read_until(client* c, wire::http_stage wanted);
    static task<void> answer_call(client* c, http_router::match to, http_right right);
    static task<void> stream_events(client* c, http_answer answer, std::string last_id);
    static task<void> event_loop(scope& children, client* c, http_events* source,
                                 std::string last_id);
    static task<void> respond(client* c, wire::http_response answer, bool keep_alive,
                              bool is_head = false);
    static task<void> send(client* c, std::string head, std::string body);

    [[nodiscard]] verdict judge(const wire::http_request& r, const http_peer& from);
    [[nodiscard]] std::optional<wire::http_response> check_source(
        const wire::http_request& r) const;
    [[nodiscard]] std::optional<wire::http_response> check_right(const wire::http_request& r,
                                                                 const http_peer& from,
                                                                 http_right needed,
                                                                 http_right given,
                                                                 bool by_cookie) const;
    [[nodiscard]] bool is_our_host(std::string_view host) const;
    [[nodiscard]] http_right right_of(const wire::http_request& r, bool& by_cookie,
                                      bool& wrong) const;
    [[nodiscard]] std::string cookie_of(http_right right, std::string_view host) const;
    [[nodiscard]] wire::http_response log_in(const wire::http_request& r);

    http_server_options how_;
    http_router routes_;
    std::string cookie_name_;
    std::deque<login> logins_; ///< the oldest first, few
    http_turns turns_;
    std::unique_ptr<detail::http_places> places_;
    std::uint64_t answered_ = 0, refused_ = 0;
};

} // namespace skein::net

#if SKEIN_HEADER_ONLY
#include <skein/net/detail/http_rules.ipp>
#include <skein/net/detail/http_server.ipp>
#endif
