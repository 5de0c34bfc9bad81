// SPDX-License-Identifier: Apache-2.0
// A server of HTTP in the simulated world, and a client that sends what it is told, byte for byte.
#pragma once

#include "net/support.hpp"

#include <skein/core/sleep.hpp>
#include <skein/net/acceptor.hpp>
#include <skein/net/http_server.hpp>
#include <skein/sim/network.hpp>

#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/core.h>

namespace http_test {

using namespace net_test;

inline const std::string view_key(43, 'v');
inline const std::string submit_key(43, 's');
inline constexpr const char* near_host = "127.0.0.1"; ///< a host of the simulation that is loopback
inline constexpr const char* far_host = "far";

struct reply {
    int status = 0; ///< 0: the stream ended before a response
    std::map<std::string, std::string> headers{};
    std::string body{};
};

/// One stream to the server.
class client {
public:
    explicit client(std::unique_ptr<net::stream> s) : with(std::move(s)) {}

    static task<std::shared_ptr<client>> connect(sim::network* network, std::string from) {
        auto connecting = network->host(from).connect(net::address::sim("server", 1));
        auto s = co_await connecting;
        co_return std::make_shared<client>(std::move(s));
    }
    static task<void> send(client* self, std::string text) {
        const byte_span part = as_bytes(text);
        auto writing = self->with->write_all({&part, 1});
        co_await writing;
    }
    /// More bytes; false: the server has closed the stream.
    static task<bool> more(client* self) {
        byte_buffer into(4096);
        std::size_t got = 0;
        try {
            auto reading = self->with->read_some(into);
            got = co_await reading;
        } catch (const error& e) {
            if (e.code() != errc::reset) throw;
        }
        self->held += as_text(byte_span(into).first(got));
        co_return got > 0;
    }
    /// Reads up to and with this text; all that is there if the stream ends.
    static task<std::string> until(client* self, std::string end) {
        for (;;) {
            const auto at = self->held.find(end);
            if (at != std::string::npos) {
                auto out = self->held.substr(0, at + end.size());
                self->held.erase(0, out.size());
                co_return out;
            }
            auto reading = more(self);
            if (!co_await reading) co_return std::exchange(self->held, std::string());
        }
    }
    /// The next response.
    static task<reply> receive(client* self, bool has_body = true) {
        reply out;
        auto heading = until(self, "\r\n\r\n");
        const auto head = co_await heading;
        if (head.size() < 12) co_return out;
        out.status = std::stoi(head.substr(9, 3));
        for (std::size_t at = head.find("\r\n") + 2; at < head.size();) {
            const auto end = head.find("\r\n", at);
            const auto line = head.substr(at, end - at);
            const auto colon = line.find(": ");
            if (colon != std::string::npos)
                out.headers[line.substr(0, colon)] = line.substr(colon + 2);
            at = end + 2;
        }
        const auto length = out.headers.find("Content-Length");
        if (!has_body || length == out.headers.end()) co_return out;
        const auto bytes = std::stoul(length->second);
        while (self->held.size() < bytes) {
            auto reading = more(self);
            if (!co_await reading) break;
        }
        out.body = self->held.substr(0, bytes);
        self->held.erase(0, out.body.size());
        co_return out;
    }
    static task<reply> ask(client* self, std::string text) {
        const bool has_body = !text.starts_with("HEAD");
        auto sending = send(self, std::move(text));
        co_await sending;
        auto reading = receive(self, has_body);
        auto out = co_await reading;
        co_return out;
    }
    /// True when the server closes the stream and says nothing more.
    static task<bool> is_closed(client* self) {
        auto reading = more(self);
        const bool got = co_await reading;
        co_return !got && self->held.empty();
    }

    std::unique_ptr<net::stream> with;
    std::string held;
};

/// A request as clients write it; each line of `headers` ends with \r\n.
inline std::string request(std::string_view line, std::string_view headers = {},
                           std::string_view body = {}) {
    std::string out = fmt::format("{} HTTP/1.1\r\nHost: localhost\r\n{}", line, headers);
    if (!body.empty()) out += fmt::format("Content-Length: {}\r\n", body.size());
    return out + "\r\n" + std::string(body);
}
inline std::string bearer(const std::string& key) {
    return "Authorization: Bearer " + key + "\r\n";
}

/// One request on a stream of its own.
inline task<reply> ask_from(sim::network* network, std::string from, std::string text) {
    auto connecting = client::connect(network, std::move(from));
    const auto c = co_await connecting;
    auto asking = client::ask(c.get(), std::move(text));
    auto out = co_await asking;
    c->with->close();
    co_return out;
}

inline net::http_server_options server_options() {
    net::http_server_options how;
    how.keys = {view_key, submit_key};
    how.cluster = "c1";
    how.hosts = {"head.example"};
    return how;
}

using body = std::function<task<void>(sim::network&, net::http_server&)>;

inline task<void> beside(sim::network* network, net::http_server* web, body* work) {
    net::acceptor_options bounds;
    bounds.deadline.reset(); // the server has limits of its own
    net::acceptor door(network->host("server"), net::address::sim("server", 1), bounds);
    scope serving;
    serving.spawn(door.serve([web](std::unique_ptr<net::stream> s, net::admission* place) {
        return web->serve(std::move(s), {}, place);
    }));
    auto running = error_of(with_timeout((*work)(*network, *web), 1000s));
    const auto fault = co_await running;
    door.close();
    if (fault) serving.cancel();
    auto ended = error_of(with_timeout(serving.join(), 200s));
    const auto late = co_await ended;
    if (fault) throw *fault;
    if (late) throw *late;
    CHECK(web->connections() == 0);
}

/// Runs `work` beside a server with these routes.
inline void with_server(net::http_router routes, body work,
                        net::http_server_options how = server_options()) {
    sim::loop loop(7);
    sim::network network(loop, sim::faults());
    net::http_server web(std::move(routes), std::move(how));
    loop.run(beside(&network, &web, &work));
    CHECK(network.open_streams() == 0);
}

} // namespace http_test
