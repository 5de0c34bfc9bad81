// SPDX-License-Identifier: Apache-2.0
// What the tests of net share: options with one token, a real world with a deadline, a pair of
// connections, and a catch for errors.
#pragma once

#include <skein/core/log.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/timeout.hpp>
#include <skein/net/connection.hpp>
#include <skein/net/real_network.hpp>
#include <skein/sim/network.hpp>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/core.h>
#include <unistd.h>

namespace net_test {

using namespace skein;
using namespace std::chrono_literals;

inline net::connection_options options(const char* name = "test", char token_digit = '7') {
    net::connection_options o;
    o.secret = net::token::from_hex(std::string(64, token_digit)).value();
    o.self.name = name;
    o.self.pid = 42;
    o.self.host = "here";
    return o;
}

/// A name that no other test or process uses.
inline net::address fresh_unix() {
    static std::atomic<int> number{0};
    return net::address::abstract_unix(fmt::format("skein-test-{}-{}", ::getpid(), ++number));
}

/// Runs work in the real world; a hang is an error after a generous time.
template <class T>
T run_real(std::function<task<T>(net::real_loop&)> work) {
    net::real_loop loop;
    auto limited = [](std::function<task<T>(net::real_loop&)>* w, net::real_loop* on) -> task<T> {
        auto inner = with_timeout((*w)(*on), 60s);
        co_return co_await inner;
    };
    return loop.run(limited(&work, &loop));
}

/// What a task throws; nothing if it ends well.
inline task<std::optional<error>> error_of(task<void> work) {
    std::optional<error> out;
    try {
        co_await work;
    } catch (const error& e) {
        out = e;
    }
    co_return out;
}
template <class T>
task<void> drop_value(task<T> work) {
    (void)co_await work;
}

struct pair {
    net::connection::handle client, server;
};

inline task<void> accept_into(net::listener* at, net::connection_options o,
                              net::connection::handle* out) {
    auto accepting = at->accept();
    auto s = co_await accepting;
    auto greeting = net::connection::accept(std::move(s), std::move(o));
    *out = co_await greeting;
}

/// Two connected ends over `client_net` to a listener of `server_net`.
inline task<pair> connect_pair(net::network* client_net, net::network* server_net, net::address at,
                               net::connection_options client, net::connection_options server) {
    auto listener = server_net->listen(std::move(at));
    scope accepting;
    pair p;
    accepting.spawn(accept_into(listener.get(), std::move(server), &p.server));
    std::optional<error> fault;
    try {
        auto connecting =
            net::connection::connect(*client_net, listener->local(), std::move(client));
        p.client = co_await connecting;
    } catch (const error& e) {
        fault = e;
    }
    auto joined = accepting.join();
    try {
        co_await joined;
    } catch (const error& e) {
        if (!fault) fault = e;
    }
    if (fault) throw *fault;
    co_return p;
}

inline task<void> close_pair(pair p) {
    scope closing;
    closing.spawn(p.client->close());
    closing.spawn(p.server->close());
    auto joined = closing.join();
    co_await joined;
}

inline byte_buffer pattern(std::size_t bytes, unsigned salt = 0) {
    byte_buffer b(bytes);
    for (std::size_t i = 0; i < bytes; ++i) b[i] = static_cast<std::byte>(i * 31 + i / 251 + salt);
    return b;
}

/// Log lines of this test instead of standard error.
struct quiet {
    quiet() {
        logging::set_sink([this](const logging::record& r) {
            lines += logging::format_text(r);
            lines += '\n';
        });
    }
    ~quiet() { logging::set_sink(nullptr); }
    quiet(const quiet&) = delete;
    quiet& operator=(const quiet&) = delete;
    /// Lines that hold the text.
    [[nodiscard]] int with(std::string_view text) const {
        int n = 0;
        for (std::size_t at = 0; at < lines.size();) {
            const auto end = lines.find('\n', at);
            n += std::string_view(lines).substr(at, end - at).find(text) != std::string::npos;
            at = end + 1;
        }
        return n;
    }
    std::string lines;
};

/// Sends back what comes; a frame of kind 9 is refused.
inline task<void> echo(net::connection::handle c) {
    for (;;) {
        auto receiving = c->receive();
        auto f = co_await receiving;
        if (!f) co_return;
        if (f->kind == 9) throw error(errc::io, "asked to fail");
        c->send(std::move(*f));
    }
}

} // namespace net_test
