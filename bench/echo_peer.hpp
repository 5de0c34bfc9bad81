// SPDX-License-Identifier: Apache-2.0
#pragma once
// The baseline of calls between processes: a bare asio::awaitable ping-pong with a process that
// echoes, over a Unix and a TCP socket; and which cores both sides run on.
//
// A wake-up on the caller's own core costs a fraction of one on another core, and the kernel would
// place each pair anew for every measurement: so latency is measured twice, with all on one core
// and with the two sides on two.

#include "bench.hpp"

#include <skein/core/error.hpp>
#include <skein/net/asio.hpp>
#include <skein/proc/process.hpp>

#include <asio/awaitable.hpp>
#include <asio/co_spawn.hpp>
#include <asio/detached.hpp>
#include <asio/read.hpp>
#include <asio/use_awaitable.hpp>
#include <asio/write.hpp>

#include <array>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

namespace bench {

/// Where a process runs from now on; 0: this thread.
inline void pin(pid_t who, const std::vector<int>& cores) {
    cpu_set_t set;
    CPU_ZERO(&set);
    for (const int c : cores) CPU_SET(c, &set);
    if (::sched_setaffinity(who, sizeof set, &set) != 0)
        throw skein::error(skein::errc::io,
                           fmt::format("process {} cannot be moved to another core", who));
}

/// Where the caller and the processes it calls run from now on.
inline void place(const std::vector<int>& caller_cores, const std::vector<int>& other_cores,
                  const std::vector<pid_t>& others) {
    pin(0, caller_cores);
    for (const pid_t p : others) pin(p, other_cores);
}

[[nodiscard]] inline std::vector<int> usable_cores() {
    cpu_set_t set;
    CPU_ZERO(&set);
    ::sched_getaffinity(0, sizeof set, &set);
    std::vector<int> out;
    for (int c = 0; c < CPU_SETSIZE; ++c)
        if (CPU_ISSET(c, &set)) out.push_back(c);
    return out;
}

/// Notes how long something took, in nanoseconds.
class stopwatch {
public:
    [[nodiscard]] double ns() const {
        return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin_)
            .count();
    }

private:
    std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

using unix_socket = asio::local::stream_protocol::socket;
using tcp_socket = asio::ip::tcp::socket;

/// As many as a small call takes with its frame: 24 bytes of header, 32 of the call, an argument of
/// 8.
inline constexpr std::size_t echo_bytes = 64;

template <class Socket>
asio::awaitable<void> echo(Socket s) {
    std::array<std::byte, echo_bytes> buffer;
    try {
        for (;;) {
            co_await asio::async_read(s, asio::buffer(buffer), asio::use_awaitable);
            co_await asio::async_write(s, asio::buffer(buffer), asio::use_awaitable);
        }
    } catch (const std::system_error&) { // the other end has gone
    }
}

template <class Socket, class More>
asio::awaitable<void> ping(Socket& s, std::vector<double>& ns, More more) {
    std::array<std::byte, echo_bytes> buffer{};
    while (more()) {
        const stopwatch watch;
        co_await asio::async_write(s, asio::buffer(buffer), asio::use_awaitable);
        co_await asio::async_read(s, asio::buffer(buffer), asio::use_awaitable);
        ns.push_back(watch.ns());
    }
}

/// Set for a process that is to echo.
inline constexpr const char* echo_variable = "SKEIN_BENCH_ECHO";

/// In the echo process: file 5 is one end of a socket pair, file 6 a connected TCP socket.
inline int echo_main() {
    asio::io_context context(1);
    unix_socket local(context, asio::local::stream_protocol(), 5);
    tcp_socket remote(context, asio::ip::tcp::v4(), 6);
    remote.set_option(asio::ip::tcp::no_delay(true));
    asio::co_spawn(context, echo(std::move(local)), asio::detached);
    asio::co_spawn(context, echo(std::move(remote)), asio::detached);
    context.run();
    return 0;
}

/// The echo process and our ends of its two sockets.
struct echo_peer {
    asio::io_context context{1};
    std::optional<unix_socket> local;
    std::optional<tcp_socket> remote;
    skein::proc::child_process process;

    echo_peer() {
        int ends[2];
        if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) std::abort();
        asio::ip::tcp::acceptor acceptor(context, {asio::ip::address_v4::loopback(), 0});
        tcp_socket theirs(context);
        theirs.connect(acceptor.local_endpoint());
        remote.emplace(acceptor.accept());
        remote->set_option(asio::ip::tcp::no_delay(true));
        local.emplace(context, asio::local::stream_protocol(), ends[0]);
        skein::proc::process_options how;
        how.executable = "/proc/self/exe";
        how.argv = {"bench-echo"};
        how.env.emplace_back(echo_variable, "1");
        how.fds = {{ends[1], 5}, {theirs.native_handle(), 6}};
        process = skein::proc::child_process::spawn(how);
        ::close(ends[1]);
    }

    /// Nanoseconds of each round trip, as long as more() says so.
    template <class Socket, class More>
    std::vector<double> trips(Socket& s, More more) {
        std::vector<double> ns;
        asio::co_spawn(context, ping(s, ns, more), asio::detached);
        context.restart();
        context.run();
        return ns;
    }
    /// The median of so many.
    template <class Socket>
    double p50(Socket& s, int count) {
        return percentile(trips(s, [left = count]() mutable { return left-- > 0; }), 0.5);
    }
};

} // namespace bench
