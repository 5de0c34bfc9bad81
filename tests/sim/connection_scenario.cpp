// SPDX-License-Identifier: Apache-2.0
// echo: raw streams keep every byte in order. connection: frames come back in order and at most
// once, through resets, cuts and crashes; after the calm all work ends and nothing is left behind.
#include "sim/scenario.hpp"

#include <skein/core/scope.hpp>
#include <skein/core/timeout.hpp>
#include <skein/net/connection.hpp>
#include <skein/net/endpoint.hpp>

#include <string>
#include <vector>

namespace {

using namespace skein;
using namespace std::chrono_literals;

bool is_expected(const error& e) {
    return e.code() == errc::reset || e.code() == errc::refused || e.code() == errc::timeout ||
           e.code() == errc::closed || e.code() == errc::peer_lost || e.code() == errc::corrupt;
}

// ---- echo over raw streams ----------------------------------------------------------------------

task<void> echo_back(std::unique_ptr<net::stream> s) {
    byte_buffer buffer(3000);
    try {
        for (;;) {
            auto reading = s->read_some(buffer);
            const std::size_t got = co_await reading;
            if (got == 0) break;
            const byte_span part(buffer.data(), got);
            auto writing = s->write_all(std::span<const byte_span>(&part, 1));
            co_await writing;
        }
        s->close_send();
    } catch (const error& e) {
        if (!is_expected(e)) throw;
    }
}

task<void> echo_server(scope* children, net::listener* at) {
    for (;;) {
        auto accepting = at->accept();
        auto s = co_await accepting;
        children->spawn(echo_back(std::move(s)));
    }
}

task<void> send_pattern(net::stream* s, std::size_t total, std::uint64_t salt) {
    byte_buffer piece;
    std::size_t sent = 0;
    while (sent < total) {
        const std::size_t n = std::min<std::size_t>(total - sent, 1 + (sent * 7 + salt) % 5000);
        piece.resize(n);
        for (std::size_t i = 0; i < n; ++i)
            piece[i] = static_cast<std::byte>((sent + i) * 31 + salt);
        const byte_span part(piece);
        auto writing = s->write_all(std::span<const byte_span>(&part, 1));
        co_await writing;
        sent += n;
    }
    s->close_send();
}

task<void> echo_client(sim::world* w, net::network* from, net::address to, std::uint64_t salt) {
    const std::size_t total = 1 + static_cast<std::size_t>(w->below(60000));
    std::unique_ptr<net::stream> s;
    scope sending;
    std::optional<error> fault;
    try {
        auto connecting = from->connect(to);
        s = co_await connecting;
        sending.spawn(send_pattern(s.get(), total, salt));
        byte_buffer buffer(1 + static_cast<std::size_t>(w->below(4000)));
        std::size_t got_all = 0;
        for (;;) {
            auto reading = s->read_some(buffer);
            const std::size_t got = co_await reading;
            if (got == 0) break;
            for (std::size_t i = 0; i < got; ++i) {
                w->check(buffer[i] == static_cast<std::byte>((got_all + i) * 31 + salt),
                         "echo differs");
            }
            got_all += got;
        }
        w->check(got_all == total, "echo lost bytes without an error");
    } catch (const error& e) {
        fault = e;
    }
    if (s) s->close();
    try {
        auto joined = sending.join();
        co_await joined;
    } catch (const error& e) {
        if (!is_expected(e)) throw;
    }
    w->loop.trace(fault ? 1 : 2);
    if (fault && !is_expected(*fault)) throw *fault;
}

task<void> calm_after(sim::world* w, duration time) {
    auto pause = sleep_for(time);
    co_await pause;
    w->network.stop_faults();
}

task<void> echo(sim::world& w) {
    w.network.faults().flip = 0; // raw streams carry no checksum
    auto& server = w.network.host("server");
    auto at = server.listen(net::address::sim("server", 1));
    scope clients, servers;
    servers.spawn(echo_server(&servers, at.get()));
    clients.spawn(calm_after(&w, 3s));
    const auto count = 1 + w.below(4);
    for (std::uint64_t k = 0; k < count; ++k) {
        clients.spawn(
            echo_client(&w, &w.network.host(fmt::format("client-{}", k)), at->local(), k * 77));
    }
    std::optional<error> fault;
    try {
        auto joined = clients.join();
        co_await joined;
    } catch (const error& e) {
        fault = e;
    }
    servers.cancel();
    auto ended = servers.join();
    co_await ended;
    if (fault) throw *fault;
}
const sim::scenario echo_registered("echo", &echo);

// ---- frames over connections --------------------------------------------------------------------

net::connection_options options_of(const char* name) {
    net::connection_options o;
    const auto secret = net::token::from_hex(std::string(64, '7'));
    o.secret = secret.value();
    o.self.name = name;
    return o;
}

task<void> serve_echo(net::connection::handle c) {
    for (;;) {
        auto next = c->receive();
        auto f = co_await next;
        if (!f) break;
        c->send(std::move(*f));
        auto room = c->send_ready();
        co_await room;
    }
}

task<void> ask(sim::world* w, net::connection* c, std::uint64_t from, std::uint64_t count) {
    byte_buffer body;
    for (std::uint64_t i = from; i < from + count; ++i) {
        const std::size_t n = i % 11 == 10 ? 20000 + i * 13 % 60000 : i * 37 % 900;
        body.assign(n, static_cast<std::byte>(i));
        c->send(static_cast<std::uint16_t>(1 + i % 5), 3, i, body);
        if (w->chance(0.3)) {
            auto room = c->send_ready();
            co_await room;
        }
    }
}

task<void> collect(sim::world* w, net::connection* c, std::uint64_t from, std::uint64_t count) {
    for (std::uint64_t i = from; i < from + count; ++i) {
        auto next = c->receive();
        auto f = co_await next;
        if (!f) throw error(errc::closed, "the server said goodbye");
        w->check(f->id == i, "a frame was lost, doubled or overtaken");
        w->check(f->kind == 1 + i % 5 && f->flags == 3, "a header changed on the way");
        const std::size_t n = i % 11 == 10 ? 20000 + i * 13 % 60000 : i * 37 % 900;
        w->check(f->body.size() == n && (n == 0 || f->body.back() == static_cast<std::byte>(i)),
                 "a body changed on the way");
    }
}

task<void> one_session(sim::world* w, net::network* from, net::address to, std::uint64_t count,
                       bool* complete) {
    net::reconnect_policy policy;
    policy.max_tries = 4;
    auto dialing =
        net::connect_patiently(*from, to, options_of("client"), policy, w->loop.random());
    auto c = co_await dialing;
    const std::uint64_t base = w->below(1000);
    scope both;
    both.spawn(ask(w, c.get(), base, count));
    both.spawn(collect(w, c.get(), base, count));
    std::optional<error> fault;
    try {
        auto joined = both.join();
        co_await joined;
        *complete = true;
    } catch (const error& e) {
        fault = e;
    }
    auto closing = c->close();
    co_await closing;
    w->check(!c->is_open() && c->queued_bytes() == 0, "a closed connection holds bytes");
    if (fault) throw *fault;
}

task<void> client(sim::world* w, net::network* from, net::address to) {
    const std::uint64_t count = 1 + w->below(80);
    bool complete = false;
    for (int session = 0; !complete;
         ++session) { // liveness: when the faults end, a session completes
        if (session > 200)
            throw error(errc::internal, "invariant broken: no session completes after the calm");
        try {
            auto running = one_session(w, from, to, count, &complete);
            co_await running;
        } catch (const error& e) {
            if (!is_expected(e)) throw;
        }
        if (!complete) {
            auto pause = sleep_for(50ms);
            co_await pause;
        }
    }
}

task<void> crash_sometimes(sim::world* w) {
    if (!w->chance(0.3)) co_return;
    auto pause = sleep_for(w->loop.draw_delay(1ms, 500ms));
    co_await pause;
    // The client's machine breaks its streams (loudly) or falls silent; the server must notice
    // both.
    w->network.crash("client-0", w->chance(0.5));
}

task<void> frames(sim::world& w) {
    net::endpoint server(w.network.host("server"), net::address::sim("server", 1),
                         options_of("server"));
    scope clients, serving;
    serving.spawn(server.serve(&serve_echo));
    clients.spawn(calm_after(&w, 4s));
    clients.spawn(crash_sometimes(&w));
    const auto count = 1 + w.below(3);
    for (std::uint64_t k = 0; k < count; ++k) {
        clients.spawn(client(&w, &w.network.host(fmt::format("client-{}", k)), server.local()));
    }
    std::optional<error> fault;
    try {
        auto joined = clients.join();
        co_await joined;
    } catch (const error& e) {
        fault = e;
    }
    server.close();
    // Every connection of the server ends by itself: goodbye, reset, or the silence of its peer.
    auto ended = with_timeout(serving.join(), 60s);
    co_await ended;
    if (fault) throw *fault;
}
const sim::scenario frames_registered("connection", &frames);

} // namespace
