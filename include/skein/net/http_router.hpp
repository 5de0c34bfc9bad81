// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which function answers which request, and what a client must be allowed for it.
//
//     net::http_router routes;
//     routes.add("GET", "/api/jobs/{id}", net::http_right::view, [&](net::http_call c) {
//         return show_job(&jobs, std::move(c));      // task<net::http_answer>
//     });
//
// A part in braces stands for any one part of a path. A slash at the end does not matter.
// Part of the component skein::http.

#include <skein/core/function.hpp>
#include <skein/core/task.hpp>
#include <skein/wire/http.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace skein::net {

/// What a client must be allowed; each contains those before it.
enum class http_right : std::uint8_t {
    open,  ///< nothing: health, the page without data
    view,  ///< sees what is there
    change ///< starts, stops, deletes; from this host only
};
[[nodiscard]] std::string_view to_string(http_right right) noexcept;

/// Who asks.
struct http_peer {
    std::string name{};    ///< for messages
    bool loopback = false; ///< a process of this host, or what a peer of the cluster forwards
};

/// One request for a handler.
struct http_call {
    wire::http_request request{};
    wire::http_pairs parts{}; ///< what the pattern's braces stand for
    http_peer peer{};
    http_right right = http_right::open; ///< what the client is allowed

    /// The part of that name; a name that the pattern does not have is a bug.
    [[nodiscard]] const std::string& part(std::string_view name) const;
};

/// One server-sent event.
struct http_event {
    http_event() = default;
    http_event(std::string text) : data(std::move(text)) {} // NOLINT: it is its data
    http_event(std::string text, std::string id_, std::string kind_ = {})
        : data(std::move(text)), id(std::move(id_)), kind(std::move(kind_)) {}
    std::string data{};
    std::string id{};   ///< a client that comes back says the last one it has seen
    std::string kind{}; ///< the page listens by it; nothing: "message"
};

/// Gives the next event after the one with that id (empty: the present state), or nothing at the
/// end. It is asked again when its last event has been written, so a slow client misses events and
/// none wait for it: an event should say the state, not the change. Cancelled when the client
/// leaves, and each time a heartbeat is due; then it is asked again.
using http_events = unique_function<task<std::optional<http_event>>(std::string last_id)>;

/// What a handler gives: a response, or a source of events.
struct http_answer {
    http_answer() = default;
    http_answer(wire::http_response r) : response(std::move(r)) {} // NOLINT: one is an answer
    http_answer(http_events e) : events(std::move(e)) {}           // NOLINT: so is the other
    wire::http_response response{};
    http_events events{}; ///< when set, of the response only the headers count
};

/// Throws skein::error for a refusal: the client reads its parts, the status follows its code.
using http_handler = unique_function<task<http_answer>(http_call)>;

/// A list of routes.
class http_router {
public:
    struct route {
        std::string method{}, pattern{};
        http_right right = http_right::open;
    };

    /// errors  invalid_argument: the route is there already, the pattern is none, or a GET changes
    ///         something
    void add(std::string method, std::string pattern, http_right right, http_handler handler);

    /// All of them, in the order in which they came.
    [[nodiscard]] std::vector<route> routes() const;

    /// What a path leads to.
    struct match {
        std::string allowed{};           ///< methods of the path, for Allow; empty: no such path
        const route* found = nullptr;    ///< the one of the method; HEAD: that of GET
        http_handler* handler = nullptr; ///< its function
        wire::http_pairs parts{};
    };
    [[nodiscard]] match find(std::string_view method, std::string_view path);

private:
    struct entry {
        route shown;
        std::vector<std::string> parts;
        http_handler handler;
    };
    std::vector<entry> entries_;
};

} // namespace skein::net

#if SKEIN_HEADER_ONLY
#include <skein/net/detail/http_router.ipp>
#endif
