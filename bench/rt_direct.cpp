// SPDX-License-Identifier: Apache-2.0
// Calls of actors between two workers: directly, through their driver, and beside a bare
// asio::awaitable ping-pong of two processes over the same kind of socket. The measurements take
// turns; each runs in the calling worker.
#include "bench.hpp"
#include "echo_peer.hpp"

#include <skein/core/scope.hpp>
#include <skein/net/real_loop.hpp>
#include <skein/net/real_network.hpp>
#include <skein/proc/children.hpp>
#include <skein/program/run.hpp>
#include <skein/rt/runtime.hpp>

#include <cstdlib>
#include <vector>

namespace {

using namespace skein;

constexpr int round_trips = 4000;
constexpr std::size_t in_flight = 1000;

// ---- ours ---------------------------------------------------------------------------------------

struct counter {
    long n = 0;
    long add(long k) { return n += k; }
    long pid() { return ::getpid(); }
};
/// Measures from the worker where it lives.
struct observer {
    task<double> p50(actor_handle<counter> to) {
        std::vector<double> ns;
        for (int i = 0; i < round_trips; ++i) {
            const bench::stopwatch watch;
            auto r = to.call<&counter::add>(1);
            (void)co_await r;
            ns.push_back(watch.ns());
        }
        co_return bench::percentile(std::move(ns), 0.5);
    }
    task<double> calls_per_second(actor_handle<counter> to, std::size_t total) {
        const bench::stopwatch watch;
        std::vector<ref<long>> window(in_flight);
        for (std::size_t i = 0; i < total; ++i) {
            auto& r = window[i % in_flight];
            if (r) (void)co_await r;
            r = to.call<&counter::add>(1);
        }
        for (auto& r : window) (void)co_await r;
        co_return static_cast<double>(total) / (watch.ns() / 1e9);
    }
    long pid() { return ::getpid(); }
};

/// A driver with two workers, an actor on each.
struct worker_pair {
    net::real_loop& loop;
    net::real_network network;
    proc::local_children children;
    rt::runtime driver;
    program::local_workers workers;
    scope services;
    actor_handle<counter> called;
    actor_handle<observer> calls;
    pid_t called_pid = 0, calls_pid = 0;

    worker_pair(net::real_loop& l, bool direct)
        : loop(l), network(l), children(l), driver(rt::runtime_options{}),
          workers(l, network, children, driver, options(direct)) {
        loop.run(start(this));
    }
    ~worker_pair() { loop.run(stop(this)); }

    static program::local_workers_options options(bool direct) {
        program::local_workers_options o;
        o.count = 2;
        o.direct_calls = direct;
        return o;
    }
    static task<void> start(worker_pair* self) {
        self->services.spawn(self->workers.serve());
        const rt::runtime::use current(self->driver);
        auto first = skein::actor<counter>();
        auto second = skein::actor<observer>();
        self->called = co_await first;
        self->calls = co_await second;
        auto a = self->called.call<&counter::pid>();
        self->called_pid = static_cast<pid_t>(co_await a);
        auto b = self->calls.call<&observer::pid>();
        self->calls_pid = static_cast<pid_t>(co_await b);
        if (self->called_pid == self->calls_pid)
            throw error(errc::internal, "both actors are on one worker");
    }
    static task<void> stop(worker_pair* self) {
        self->called = {};
        self->calls = {};
        self->workers.stop();
        auto bye = self->driver.close();
        co_await bye;
        auto joined = self->services.join();
        co_await joined;
    }
    static task<double> latency(worker_pair* self) {
        auto r = self->calls.call<&observer::p50>(self->called);
        co_return co_await r;
    }
    static task<double> rate(worker_pair* self, std::size_t total) {
        auto r = self->calls.call<&observer::calls_per_second>(self->called, total);
        co_return co_await r;
    }
    double p50() { return loop.run(latency(this)); }
    double calls_per_second(std::size_t total) { return loop.run(rate(this, total)); }
};

} // namespace

int main() {
    if (program::is_worker()) return program::worker_main();
    if (std::getenv(bench::echo_variable) != nullptr) return bench::echo_main();

    net::real_loop loop;
    worker_pair direct(loop, true), through(loop, false);
    bench::echo_peer peer;
    bool ok = true;
    const auto cores = bench::usable_cores();
    /// Who calls on one core, drivers with them; who is called on another.
    const auto place = [&](const std::vector<int>& caller, const std::vector<int>& called) {
        for (const pid_t p : {pid_t{0}, direct.calls_pid, through.calls_pid}) bench::pin(p, caller);
        for (const pid_t p : {peer.process.pid(), direct.called_pid, through.called_pid})
            bench::pin(p, called);
    };
    const auto latency = [&](const std::string& where) {
        const auto [ours, bare, old] = bench::in_turns<3>(
            9, {[&] { return direct.p50(); }, [&] { return peer.p50(*peer.local, round_trips); },
                [&] { return through.p50(); }});
        ok &= bench::figure("rt_direct.actor_call_p50." + where, ours.median, "ns")
                  .against("asio_ping_pong_unix", bare.median)
                  .at_most(1.3)
                  .print();
        bench::figure("rt_direct.actor_call_p50_of_both." + where, ours.median, "ns")
            .against("through_the_driver", old.median)
            .print();
    };
    place({cores.front()}, {cores.front()});
    latency("one_core");
    if (cores.size() > 1) {
        place({cores[0]}, {cores[1]});
        latency("two_cores");
    }
    place(cores, cores);
    const auto [fast, slow] =
        bench::in_turns<2>(7, {[&] { return direct.calls_per_second(100'000); },
                               [&] { return through.calls_per_second(100'000); }});
    bench::figure("rt_direct.actor_calls_1000_in_flight", fast.median, "calls/s")
        .against("through_the_driver", slow.median)
        .print();
    return ok ? 0 : 1;
}
