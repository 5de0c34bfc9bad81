// SPDX-License-Identifier: Apache-2.0
// Remote calls between two processes: latency of an actor call beside a bare asio::awaitable
// ping-pong over the same kind of socket, calls per second with 1,000 in flight, per call with
// 100,000 outstanding; calls within one worker; and the memory of a task that waits.
//
// Both the skein worker and the Asio echo are processes of their own; the measurements take turns.
// Latency is measured twice, with all on one core and with the two sides on two.
#include "bench.hpp"
#include "echo_peer.hpp"

#include <skein/core/scope.hpp>
#include <skein/net/real_loop.hpp>
#include <skein/net/real_network.hpp>
#include <skein/proc/children.hpp>
#include <skein/program/run.hpp>
#include <skein/rt/runtime.hpp>

#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include <malloc.h>

namespace {

using namespace skein;

constexpr int round_trips = 4000;
constexpr std::size_t in_flight = 1000;

// ---- ours ---------------------------------------------------------------------------------------

struct counter {
    long n = 0;
    long add(long k) { return n += k; }
    task<long> add_async(long k) { co_return n += k; }
    /// The median time of a call of another actor, in nanoseconds.
    task<double> ask(actor_handle<counter> other) {
        std::vector<double> ns;
        for (int i = 0; i < round_trips; ++i) {
            const bench::stopwatch watch;
            auto r = other.call<&counter::add>(1);
            (void)co_await r;
            ns.push_back(watch.ns());
        }
        co_return bench::percentile(std::move(ns), 0.5);
    }
    /// The time of spawn and join here, in nanoseconds.
    task<double> spawn_and_join() {
        const bench::stopwatch watch;
        for (int i = 0; i < spawns; ++i) {
            scope s;
            s.spawn(nothing());
            auto joined = s.join();
            co_await joined;
        }
        co_return watch.ns() / spawns;
    }

private:
    static constexpr int spawns = 100'000;
    static task<void> nothing() { co_return; }
};
long square(long x) { return x * x; }
task<long> square_async(long x) { co_return x* x; }

/// A driver with one worker, over a socket pair or TCP. The loop runs only during measurements.
struct worker_pool {
    net::real_loop& loop;
    net::real_network network;
    proc::local_children children;
    rt::runtime driver;
    program::local_workers workers;
    scope services;
    actor_handle<counter> actor;

    worker_pool(net::real_loop& l, bool over_tcp)
        : loop(l), network(l), children(l), driver(rt::runtime_options{}),
          workers(l, network, children, driver, options(over_tcp)) {
        loop.run(start(this));
    }
    ~worker_pool() { loop.run(stop(this)); }

    static program::local_workers_options options(bool over_tcp) {
        program::local_workers_options o;
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
        const bench::stopwatch watch;
        auto r = c->actor.call<&counter::add>(1);
        (void)co_await r;
        ns->push_back(watch.ns());
    }
}
double p50(worker_pool& c) {
    std::vector<double> ns;
    c.loop.run(call_one_by_one(&c, &ns));
    return bench::percentile(std::move(ns), 0.5);
}

/// Keeps `many` calls under way: the oldest is awaited, then another is made.
template <class Call>
task<void> keep_under_way(Call call, std::size_t total, std::size_t many) {
    std::vector<ref<long>> window(many);
    for (std::size_t i = 0; i < total; ++i) {
        auto& r = window[i % many];
        if (r) (void)co_await r;
        r = call(static_cast<long>(i));
    }
    for (auto& r : window) (void)co_await r;
}
template <class Call>
double calls_per_second(worker_pool& c, std::size_t total, Call call,
                        std::size_t many = in_flight) {
    return static_cast<double>(total) /
           bench::seconds([&] { c.loop.run(keep_under_way(call, total, many)); });
}

bool rates(worker_pool& local, worker_pool& tcp) {
    const auto actor = local.actor;
    auto* driver = &local.driver;
    const auto add = [&](long i) { return actor.call<&counter::add>(i); };
    const auto add_tcp = [&](long i) { return tcp.actor.call<&counter::add>(i); };
    const auto add_async = [&](long i) { return actor.call<&counter::add_async>(i); };
    const auto run_task = [&](long i) { return remote<&square>.on(*driver)(i); };
    const auto run_async = [&](long i) { return remote<&square_async>.on(*driver)(i); };
    const auto [methods, methods_tcp, coroutines, tasks, async_tasks] =
        bench::in_turns<5>(7, {[&] { return calls_per_second(local, 300'000, add); },
                               [&] { return calls_per_second(tcp, 300'000, add_tcp); },
                               [&] { return calls_per_second(local, 100'000, add_async); },
                               [&] { return calls_per_second(local, 100'000, run_task); },
                               [&] { return calls_per_second(local, 100'000, run_async); }});
    bool ok = bench::figure("rt.actor_calls_1000_in_flight_unix", methods.median, "calls/s")
                  .at_least(1e6)
                  .print();
    ok &= bench::figure("rt.actor_calls_1000_in_flight_tcp", methods_tcp.median, "calls/s")
              .at_least(1e6)
              .print();
    bench::figure("rt.actor_coroutine_calls_1000_in_flight", coroutines.median, "calls/s").print();
    bench::figure("rt.tasks_1000_in_flight", tasks.median, "calls/s").print();
    bench::figure("rt.coroutine_tasks_1000_in_flight", async_tasks.median, "calls/s").print();
    return ok;
}

/// What a call costs while so many are outstanding.
bool outstanding(worker_pool& local) {
    const auto actor = local.actor;
    const auto add = [&](long i) { return actor.call<&counter::add>(i); };
    const auto each = [&](std::size_t many) {
        return [&, many] { return 1e9 / calls_per_second(local, 500'000, add, many); };
    };
    const auto [few, more, most] = bench::in_turns<3>(9, {each(1000), each(10'000), each(100'000)});
    bench::figure("rt.call_10000_outstanding", more.median, "ns")
        .against("1000 outstanding", few.median)
        .print();
    return bench::figure("rt.call_100000_outstanding", most.median, "ns")
        .against("1000 outstanding", few.median)
        .at_most(1.3)
        .print();
}

/// A call of an actor in the caller's own process.
bool within_a_worker(worker_pool& local) {
    const auto ask = [](worker_pool* c) -> task<double> {
        const rt::runtime::use current(c->driver);
        auto other = co_await skein::actor<counter>();
        auto r = c->actor.call<&counter::ask>(other);
        co_return co_await r;
    };
    const auto spawn = [](worker_pool* c) -> task<double> {
        auto r = c->actor.call<&counter::spawn_and_join>();
        co_return co_await r;
    };
    const auto [call, spawned] =
        bench::in_turns<2>(9, {[&] { return local.loop.run(ask(&local)); },
                               [&] { return local.loop.run(spawn(&local)); }});
    return bench::figure("rt.local_actor_call_p50", call.median, "ns")
        .against("spawn and join", spawned.median)
        .at_most(3)
        .print();
}

/// Memory of each of many tasks that wait for a worker, without the caller's refs.
bool queued_tasks(net::real_loop& loop) {
    constexpr std::size_t many = 200'000;
    const auto used = [] {
        const auto m = ::mallinfo2();
        return static_cast<double>(m.uordblks + m.hblkhd);
    };
    const auto work = [](decltype(used) now) -> task<double> {
        rt::runtime nobody{rt::runtime_options{}};
        std::vector<ref<long>> refs(many);
        const double before = now();
        for (std::size_t i = 0; i < many; ++i)
            refs[i] = remote<&square>.on(nobody)(static_cast<long>(i));
        const double after = now();
        auto bye = nobody.close();
        co_await bye;
        co_return (after - before) / static_cast<double>(many);
    };
    return bench::figure("rt.queued_task", loop.run(work(used)), "B").at_most(300).print();
}

} // namespace

int main() {
    if (program::is_worker()) return program::worker_main();
    if (std::getenv(bench::echo_variable) != nullptr) return bench::echo_main();

    net::real_loop loop;
    worker_pool local(loop, false), tcp(loop, true);
    bench::echo_peer peer;
    bool ok = true;

    std::vector<pid_t> others = {peer.process.pid()};
    for (const worker_pool* c : {&local, &tcp})
        others.insert(others.end(), c->workers.pids().begin(), c->workers.pids().end());
    const auto cores = bench::usable_cores();
    const auto latency = [&](const std::string& where) {
        const auto [our_unix, bare_unix, our_tcp, bare_tcp] = bench::in_turns<4>(
            9, {[&] { return p50(local); }, [&] { return peer.p50(*peer.local, round_trips); },
                [&] { return p50(tcp); }, [&] { return peer.p50(*peer.remote, round_trips); }});
        ok &= bench::figure("rt.actor_call_p50_unix." + where, our_unix.median, "ns")
                  .against("asio_ping_pong_unix", bare_unix.median)
                  .at_most(1.3)
                  .print();
        ok &= bench::figure("rt.actor_call_p50_tcp." + where, our_tcp.median, "ns")
                  .against("asio_ping_pong_tcp", bare_tcp.median)
                  .at_most(1.3)
                  .print();
    };
    bench::place({cores.front()}, {cores.front()}, others);
    latency("one_core");
    if (cores.size() > 1) {
        bench::place({cores[0]}, {cores[1]}, others);
        latency("two_cores");
    }
    bench::place(cores, cores, others);

    ok &= rates(local, tcp);
    ok &= outstanding(local);
    ok &= within_a_worker(local);
    ok &= queued_tasks(loop);
    return ok ? 0 : 1;
}
