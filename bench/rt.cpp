// SPDX-License-Identifier: Apache-2.0
// Remote calls between two processes: latency of an actor call beside a bare asio::awaitable ping-pong
// over the same kind of socket, and calls per second with 1,000 in flight.
//
// Both the skein worker and the Asio echo are processes of their own; the measurements take turns. A wake-up
// on the caller's own core costs a fraction of one on another core, and the kernel would place each pair
// anew for every measurement: so latency is measured twice, with all on one core and with the two sides on
// two.
#include "bench.hpp"

#include <skein/core/scope.hpp>
#include <skein/net/asio.hpp>
#include <skein/net/real_loop.hpp>
#include <skein/net/real_network.hpp>
#include <skein/rt/children.hpp>
#include <skein/rt/process.hpp>
#include <skein/rt/run.hpp>
#include <skein/rt/runtime.hpp>

#include <asio/awaitable.hpp>
#include <asio/co_spawn.hpp>
#include <asio/detached.hpp>
#include <asio/read.hpp>
#include <asio/use_awaitable.hpp>
#include <asio/write.hpp>

#include <array>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <sched.h>
#include <sys/socket.h>

namespace {

using namespace skein;
using clock_type = std::chrono::steady_clock;

constexpr int round_trips = 4000;
constexpr std::size_t in_flight = 1000;

/// Where the caller and the processes it calls run from now on.
void place(const std::vector<int>& caller_cores, const std::vector<int>& other_cores,
           const std::vector<pid_t>& others) {
    const auto pin = [](pid_t who, const std::vector<int>& cores) {
        cpu_set_t set;
        CPU_ZERO(&set);
        for (const int c : cores) CPU_SET(c, &set);
        if (::sched_setaffinity(who, sizeof set, &set) != 0)
            throw error(errc::io, fmt::format("process {} cannot be moved to another core", who));
    };
    pin(0, caller_cores);
    for (const pid_t p : others) pin(p, other_cores);
}
std::vector<int> usable_cores() {
    cpu_set_t set;
    CPU_ZERO(&set);
    ::sched_getaffinity(0, sizeof set, &set);
    std::vector<int> out;
    for (int c = 0; c < CPU_SETSIZE; ++c)
        if (CPU_ISSET(c, &set)) out.push_back(c);
    return out;
}

// ---- the baseline: a process that echoes 64 bytes --------------------------------------------------

using unix_socket = asio::local::stream_protocol::socket;
using tcp_socket = asio::ip::tcp::socket;

template <class Socket>
asio::awaitable<void> echo(Socket s) {
    std::array<std::byte, 64> buffer;
    try {
        for (;;) {
            co_await asio::async_read(s, asio::buffer(buffer), asio::use_awaitable);
            co_await asio::async_write(s, asio::buffer(buffer), asio::use_awaitable);
        }
    } catch (const std::system_error&) { // the other end has gone
    }
}

template <class Socket>
asio::awaitable<void> ping(Socket& s, std::vector<double>& ns) {
    std::array<std::byte, 64> buffer{};
    for (int i = 0; i < round_trips; ++i) {
        const auto begin = clock_type::now();
        co_await asio::async_write(s, asio::buffer(buffer), asio::use_awaitable);
        co_await asio::async_read(s, asio::buffer(buffer), asio::use_awaitable);
        ns.push_back(std::chrono::duration<double, std::nano>(clock_type::now() - begin).count());
    }
}

/// In the echo process: file 5 is one end of a socket pair, file 6 a connected TCP socket.
int echo_main() {
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
    rt::child_process process;

    echo_peer() {
        int ends[2];
        if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) std::abort();
        asio::ip::tcp::acceptor acceptor(context, {asio::ip::address_v4::loopback(), 0});
        tcp_socket theirs(context);
        theirs.connect(acceptor.local_endpoint());
        remote.emplace(acceptor.accept());
        remote->set_option(asio::ip::tcp::no_delay(true));
        local.emplace(context, asio::local::stream_protocol(), ends[0]);
        rt::process_options how;
        how.executable = "/proc/self/exe";
        how.argv = {"bench-echo"};
        how.env.emplace_back("SKEIN_BENCH_ECHO", "1");
        how.fds = {{ends[1], 5}, {theirs.native_handle(), 6}};
        process = rt::child_process::spawn(how);
        ::close(ends[1]);
    }
    template <class Socket>
    double p50(Socket& s) {
        std::vector<double> ns;
        asio::co_spawn(context, ping(s, ns), asio::detached);
        context.restart();
        context.run();
        return bench::percentile(std::move(ns), 0.5);
    }
};

// ---- ours ------------------------------------------------------------------------------------------

struct counter {
    long n = 0;
    long add(long k) { return n += k; }
    task<long> add_async(long k) { co_return n += k; }
};
long square(long x) { return x * x; }

/// A driver with one worker, over a socket pair or TCP. The loop runs only during measurements.
struct worker_pool {
    net::real_loop& loop;
    net::real_network network;
    rt::local_children children;
    rt::runtime driver;
    rt::local_workers workers;
    scope services;
    actor_handle<counter> actor;

    worker_pool(net::real_loop& l, bool over_tcp)
        : loop(l), network(l), children(l), driver(rt::runtime_options{}),
          workers(l, network, children, driver, options(over_tcp)) {
        loop.run(start(this));
    }
    ~worker_pool() { loop.run(stop(this)); }

    static rt::local_workers_options options(bool over_tcp) {
        rt::local_workers_options o;
        o.count = 1;
        o.over_tcp = over_tcp;
        return o;
    }
    static task<void> start(worker_pool* self) {
        self->services.spawn(self->workers.serve());
        const rt::runtime::use current(self->driver);
        self->actor = co_await skein::actor<counter>();
    }
    static task<void> stop(worker_pool* self) {
        self->actor = {};
        self->workers.stop();
        auto bye = self->driver.close();
        co_await bye;
        auto joined = self->services.join();
        co_await joined;
    }
};

task<void> call_one_by_one(worker_pool* c, std::vector<double>* ns) {
    for (int i = 0; i < round_trips; ++i) {
        const auto begin = clock_type::now();
        auto r = c->actor.call<&counter::add>(1);
        (void)co_await r;
        ns->push_back(std::chrono::duration<double, std::nano>(clock_type::now() - begin).count());
    }
}
double p50(worker_pool& c) {
    std::vector<double> ns;
    c.loop.run(call_one_by_one(&c, &ns));
    return bench::percentile(std::move(ns), 0.5);
}

/// Keeps 1,000 calls under way: the oldest is awaited, then another is made.
template <class Call>
task<void> call_in_flight(Call call, std::size_t total) {
    std::vector<ref<long>> window(in_flight);
    for (std::size_t i = 0; i < total; ++i) {
        auto& r = window[i % in_flight];
        if (r) (void)co_await r;
        r = call(static_cast<long>(i));
    }
    for (auto& r : window) (void)co_await r;
}
template <class Call>
double calls_per_second(worker_pool& c, std::size_t total, Call call) {
    return static_cast<double>(total) /
           bench::seconds([&] { c.loop.run(call_in_flight(call, total)); });
}

} // namespace

int main() {
    if (rt::is_worker()) return rt::worker_main();
    if (std::getenv("SKEIN_BENCH_ECHO") != nullptr) return echo_main();

    net::real_loop loop;
    worker_pool local(loop, false), tcp(loop, true);
    echo_peer peer;
    bool ok = true;

    std::vector<pid_t> others = {peer.process.pid()};
    for (const worker_pool* c : {&local, &tcp})
        others.insert(others.end(), c->workers.pids().begin(), c->workers.pids().end());
    const auto cores = usable_cores();
    const auto latency = [&](const std::string& where) {
        const auto [our_unix, bare_unix, our_tcp, bare_tcp] = bench::in_turns<4>(
            9, {[&] { return p50(local); }, [&] { return peer.p50(*peer.local); },
                [&] { return p50(tcp); }, [&] { return peer.p50(*peer.remote); }});
        ok &= bench::figure("rt.actor_call_p50_unix." + where, our_unix.median, "ns")
                  .against("asio_ping_pong_unix", bare_unix.median)
                  .at_most(1.3)
                  .print();
        ok &= bench::figure("rt.actor_call_p50_tcp." + where, our_tcp.median, "ns")
                  .against("asio_ping_pong_tcp", bare_tcp.median)
                  .at_most(1.3)
                  .print();
    };
    place({cores.front()}, {cores.front()}, others);
    latency("one_core");
    if (cores.size() > 1) {
        place({cores[0]}, {cores[1]}, others);
        latency("two_cores");
    }
    place(cores, cores, others);

    const auto actor = local.actor;
    auto* driver = &local.driver;
    const auto [methods, methods_tcp, coroutines, tasks] = bench::in_turns<4>(
        7, {[&] {
                return calls_per_second(local, 300'000,
                                        [&](long i) { return actor.call<&counter::add>(i); });
            },
            [&] {
                return calls_per_second(tcp, 300'000,
                                        [&](long i) { return tcp.actor.call<&counter::add>(i); });
            },
            [&] {
                return calls_per_second(local, 100'000,
                                        [&](long i) { return actor.call<&counter::add_async>(i); });
            },
            [&] {
                return calls_per_second(local, 100'000,
                                        [&](long i) { return remote<&square>.on(*driver)(i); });
            }});
    ok &= bench::figure("rt.actor_calls_1000_in_flight_unix", methods.median, "calls/s")
              .at_least(1e6)
              .print();
    ok &= bench::figure("rt.actor_calls_1000_in_flight_tcp", methods_tcp.median, "calls/s")
              .at_least(1e6)
              .print();
    bench::figure("rt.actor_coroutine_calls_1000_in_flight", coroutines.median, "calls/s").print();
    bench::figure("rt.tasks_1000_in_flight", tasks.median, "calls/s").print();
    return ok ? 0 : 1;
}
