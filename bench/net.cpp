// SPDX-License-Identifier: Apache-2.0
// What a connection costs: round trips against a bare Asio ping-pong of the same bytes (both ends
// on a thread of their own), calls per second with 1,000 in flight, and bulk data against plain
// blocking sockets.

#include "bench.hpp"
#include "flood.hpp"

#include <skein/net/asio.hpp>
#include <skein/net/connection.hpp>
#include <skein/net/endpoint.hpp>
#include <skein/net/link_endpoint.hpp>
#include <skein/net/real_network.hpp>

#include <asio/awaitable.hpp>
#include <asio/co_spawn.hpp>
#include <asio/detached.hpp>
#include <asio/read.hpp>
#include <asio/use_awaitable.hpp>
#include <asio/write.hpp>

#include <thread>
#include <vector>

#include <sys/socket.h>
#include <unistd.h>

namespace {

using namespace skein;
using clock_type = std::chrono::steady_clock;
constexpr std::size_t message_bytes = 64;
constexpr int trips = 4000;

double p50_us(std::vector<double>& ns) { return bench::percentile(std::move(ns), 0.5) / 1000; }

// ---- the baseline: asio::awaitable, exactly 64 bytes there and back -----------------------------

template <class Protocol>
asio::awaitable<void> asio_echo(typename Protocol::acceptor& at) {
    auto s = co_await at.async_accept(asio::use_awaitable);
    if constexpr (std::is_same_v<Protocol, asio::ip::tcp>)
        s.set_option(asio::ip::tcp::no_delay(true));
    std::array<char, message_bytes> buffer;
    try {
        for (;;) {
            co_await asio::async_read(s, asio::buffer(buffer), asio::use_awaitable);
            co_await asio::async_write(s, asio::buffer(buffer), asio::use_awaitable);
        }
    } catch (const std::system_error&) { // the client has left
    }
}

template <class Protocol>
asio::awaitable<void> asio_ask(typename Protocol::socket& s, std::vector<double>& ns) {
    std::array<char, message_bytes> buffer{};
    for (int i = 0; i < trips; ++i) {
        const auto begin = clock_type::now();
        co_await asio::async_write(s, asio::buffer(buffer), asio::use_awaitable);
        co_await asio::async_read(s, asio::buffer(buffer), asio::use_awaitable);
        ns.push_back(std::chrono::duration<double, std::nano>(clock_type::now() - begin).count());
    }
}

template <class Protocol>
double asio_ping_pong(const typename Protocol::endpoint& at) {
    asio::io_context server(1);
    typename Protocol::acceptor acceptor(server, at);
    asio::co_spawn(server, asio_echo<Protocol>(acceptor), asio::detached);
    std::thread thread([&] { server.run(); });
    std::vector<double> ns;
    {
        asio::io_context client(1);
        typename Protocol::socket s(client);
        s.connect(acceptor.local_endpoint());
        if constexpr (std::is_same_v<Protocol, asio::ip::tcp>)
            s.set_option(asio::ip::tcp::no_delay(true));
        asio::co_spawn(client, asio_ask<Protocol>(s, ns), asio::detached);
        client.run();
    }
    thread.join();
    return p50_us(ns);
}

// ---- ours ---------------------------------------------------------------------------------------

using server = bench::server_of<net::endpoint>;
using link_server = bench::server_of<net::link_endpoint>;

task<void> ask(net::network* via, net::address to, std::vector<double>* ns) {
    auto connecting = net::connection::connect(*via, to, bench::plain_options());
    auto c = co_await connecting;
    const byte_buffer body(message_bytes - net::frame_header::bytes);
    for (int i = 0; i < trips; ++i) {
        const auto begin = clock_type::now();
        c->send(1, 0, 7, body);
        auto next = c->receive();
        auto f = co_await next;
        ns->push_back(std::chrono::duration<double, std::nano>(clock_type::now() - begin).count());
        if (!f) break;
    }
    auto closing = c->close();
    co_await closing;
}

double ping_pong(const net::address& at) {
    const server there(at, &bench::echo_frames<net::connection>);
    net::real_loop loop;
    net::real_network network(loop);
    std::vector<double> ns;
    loop.run(ask(&network, there.local(), &ns));
    return p50_us(ns);
}

// ---- bulk ---------------------------------------------------------------------------------------

constexpr std::size_t frame_bytes = std::size_t{4} << 20;
constexpr int frames = 100;

task<void> swallow(net::connection::handle c) {
    c->set_handler([to = c.get()](const net::frame_view& f) {
        if (f.id == frames) to->send(2, 0, 0, {});
    });
    auto ended = c->wait_closed();
    co_await ended;
}

task<void> pour(net::network* via, net::address to, bool checksum) {
    auto o = bench::plain_options();
    o.checksum_bodies = checksum;
    auto connecting = net::connection::connect(*via, to, o);
    auto c = co_await connecting;
    const byte_buffer body(frame_bytes, std::byte{1});
    for (int i = 1; i <= frames; ++i) {
        auto sending = c->send_borrowed(1, 0, static_cast<std::uint64_t>(i), {}, body);
        co_await sending;
    }
    auto last = c->receive();
    auto f = co_await last;
    auto closing = c->close();
    co_await closing;
}

double bulk(const net::address& at, bool checksum) {
    const server there(at, &swallow);
    net::real_loop loop;
    net::real_network network(loop);
    return frame_bytes * double(frames) /
           bench::seconds([&] { loop.run(pour(&network, there.local(), checksum)); }) / 1e9;
}

/// Two threads, blocking calls, the same buffers: what the kernel gives.
template <class Protocol>
double raw_bulk(const typename Protocol::endpoint& at) {
    asio::io_context io(1);
    typename Protocol::acceptor acceptor(io, at);
    typename Protocol::socket out(io);
    out.connect(acceptor.local_endpoint());
    auto in = acceptor.accept();
    std::thread reader([&] {
        byte_buffer buffer(frame_bytes);
        for (int i = 0; i < frames; ++i) asio::read(in, asio::buffer(buffer.data(), buffer.size()));
        asio::write(in, asio::buffer(buffer.data(), 1));
    });
    const byte_buffer body(frame_bytes, std::byte{1});
    const double took = bench::seconds([&] {
        for (int i = 0; i < frames; ++i) asio::write(out, asio::buffer(body.data(), body.size()));
        char one;
        asio::read(out, asio::buffer(&one, 1));
    });
    reader.join();
    return frame_bytes * double(frames) / took / 1e9;
}

} // namespace

int main(int argc, char** argv) {
    const bool quick = argc > 1 && std::string_view(argv[1]) == "--quick";
    const int rounds = quick ? 3 : 11;
    const std::string path = fmt::format("skein-bench-{}", ::getpid());
    const auto any = asio::ip::tcp::endpoint(asio::ip::address_v4::loopback(), 0);
    const auto tcp = net::address::tcp("127.0.0.1", 0);
    const auto name = net::address::abstract_unix(path);
    const asio::local::stream_protocol::endpoint plain(std::string(1, '\0') + path + "-asio");

    const auto rtt = bench::in_turns<4>(
        rounds,
        {[&] { return ping_pong(name); },
         [&] { return asio_ping_pong<asio::local::stream_protocol>(plain); },
         [&] { return ping_pong(tcp); }, [&] { return asio_ping_pong<asio::ip::tcp>(any); }});
    bench::figure("net.round_trip_unix_p50", rtt[0].median, "us")
        .against("asio::awaitable", rtt[1].median)
        .at_most(1.3)
        .print();
    bench::figure("net.round_trip_tcp_p50", rtt[2].median, "us")
        .against("asio::awaitable", rtt[3].median)
        .at_most(1.3)
        .print();

    const auto calls = bench::in_turns<4>(
        rounds, {[&] { return bench::frames_per_second<net::connection, server>(name); },
                 [&] { return bench::frames_per_second<net::link, link_server>(name); },
                 [&] { return bench::frames_per_second<net::connection, server>(tcp); },
                 [&] { return bench::frames_per_second<net::link, link_server>(tcp); }});
    bench::figure("net.calls_unix_1000_in_flight", calls[0].median, "1/s").at_least(1e6).print();
    bench::figure("net.link_unix_1000_in_flight", calls[1].median, "1/s")
        .against("connection", calls[0].median)
        .at_least(0.9)
        .print();
    bench::figure("net.calls_tcp_1000_in_flight", calls[2].median, "1/s").at_least(1e6).print();
    bench::figure("net.link_tcp_1000_in_flight", calls[3].median, "1/s")
        .against("connection", calls[2].median)
        .at_least(0.9)
        .print();

    const auto rate = bench::in_turns<6>(
        rounds, {[&] { return bulk(name, true); }, [&] { return bulk(name, false); },
                 [&] { return raw_bulk<asio::local::stream_protocol>(plain); },
                 [&] { return bulk(tcp, true); }, [&] { return bulk(tcp, false); },
                 [&] { return raw_bulk<asio::ip::tcp>(any); }});
    bench::figure("net.bulk_unix_checked", rate[0].median, "GB/s")
        .against("blocking sockets", rate[2].median)
        .print();
    bench::figure("net.bulk_unix", rate[1].median, "GB/s")
        .against("blocking sockets", rate[2].median)
        .at_least(0.85)
        .print();
    bench::figure("net.bulk_tcp_checked", rate[3].median, "GB/s")
        .against("blocking sockets", rate[5].median)
        .print();
    bench::figure("net.bulk_tcp", rate[4].median, "GB/s")
        .against("blocking sockets", rate[5].median)
        .at_least(0.85)
        .print();
    return 0;
}
