// SPDX-License-Identifier: Apache-2.0
// A cluster of processes: calls from driver to worker and between workers, a head that dies, first
// results, leases.
//
// A head, two agents and their workers run on this host, over loopback TCP. All of them, and the
// Asio echo that is the baseline, are processes of their own; the measurements take turns.
#include "bench.hpp"
#include "cluster_processes.hpp"
#include "echo_peer.hpp"
#include "flood.hpp"

#include <skein/cluster/leased_workers.hpp>
#include <skein/cluster/messages.hpp>
#include <skein/core/channel.hpp>
#include <skein/core/scope.hpp>
#include <skein/net/endpoint.hpp>
#include <skein/net/link.hpp>
#include <skein/net/real_loop.hpp>
#include <skein/net/real_network.hpp>
#include <skein/net/requests.hpp>
#include <skein/program/run.hpp>
#include <skein/rt/runtime.hpp>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace {

using namespace skein;
using namespace std::chrono_literals;

constexpr std::size_t in_flight = 1000;

/// How long the measurements are.
struct effort {
    int rounds = 9, trips = 4000, starts = 9, restarts = 5;
    std::size_t calls = 200'000;
    std::chrono::milliseconds window{1500}, head_away{500};
};

// ---- what workers do ----------------------------------------------------------------------------

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

struct counter {
    long n = 0;
    long add(long k) { return n += k; }
    long pid() { return ::getpid(); }
    std::string node() {
        const char* name = std::getenv(bench::node_variable);
        return name != nullptr ? name : "";
    }
    /// The median time of a call of another actor, in nanoseconds.
    task<double> ask(actor_handle<counter> other, int trips) {
        std::vector<double> ns;
        for (int i = 0; i < trips; ++i) {
            const bench::stopwatch watch;
            auto r = other.call<&counter::add>(1);
            (void)co_await r;
            ns.push_back(watch.ns());
        }
        co_return bench::percentile(std::move(ns), 0.5);
    }
    /// Calls of another actor per second.
    task<double> flood(actor_handle<counter> other, std::size_t total) {
        const bench::stopwatch watch;
        auto all = call_in_flight([&](long k) { return other.call<&counter::add>(k); }, total);
        co_await all;
        co_return static_cast<double>(total) * 1e9 / watch.ns();
    }
};
long square(long x) { return x * x; }

// ---- a driver on the cluster --------------------------------------------------------------------

/// With an actor on each of the three workers. The loop runs only during measurements.
struct driver_on_cluster {
    net::real_loop& loop;
    net::real_network network;
    rt::runtime driver{rt::runtime_options{}};
    cluster::leased_workers workers;
    scope services;
    std::vector<actor_handle<counter>> actors; ///< on node a, a, b
    std::vector<pid_t> pids;

    driver_on_cluster(net::real_loop& l, const bench::cluster_processes& where)
        : loop(l), network(l), workers(l, network, driver, options(where)) {
        loop.run(start(this));
    }
    driver_on_cluster(const driver_on_cluster&) = delete;
    driver_on_cluster& operator=(const driver_on_cluster&) = delete;
    ~driver_on_cluster() { loop.run(stop(this)); }

    static cluster::leased_workers_options options(const bench::cluster_processes& where) {
        cluster::leased_workers_options o;
        o.head = where.head();
        o.secret = where.secret();
        o.workers = 3;
        o.name = "bench";
        o.executable = std::filesystem::read_symlink("/proc/self/exe").string();
        o.program = "bench-worker";
        o.folder = std::filesystem::current_path().string();
        return o;
    }
    static task<void> start(driver_on_cluster* self) {
        self->services.spawn(self->workers.serve());
        while (self->workers.connected() < 3) co_await sleep_for(2ms);
        const rt::runtime::use current(self->driver);
        for (int i = 0; i < 3; ++i) {
            auto made = actor<counter>();
            auto one = co_await made;
            auto where = one.call<&counter::node>();
            const bool is_first = co_await where == "a";
            auto process = one.call<&counter::pid>();
            const auto pid = static_cast<pid_t>(co_await process);
            self->actors.insert(is_first ? self->actors.begin() : self->actors.end(), one);
            self->pids.insert(is_first ? self->pids.begin() : self->pids.end(), pid);
        }
    }
    static task<void> stop(driver_on_cluster* self) {
        self->actors.clear();
        self->workers.stop();
        auto bye = self->driver.close();
        co_await bye;
        auto joined = self->services.join();
        co_await joined;
    }

    /// Nanoseconds of each call of the actor on the other node, one after the other.
    template <class More>
    std::vector<double> trips(More more) {
        std::vector<double> ns;
        loop.run(call_one_by_one(this, &ns, more));
        return ns;
    }
    double worker_to_worker(std::size_t to, int count) { return loop.run(ask(this, to, count)); }

private:
    template <class More>
    static task<void> call_one_by_one(driver_on_cluster* self, std::vector<double>* ns, More more) {
        while (more()) {
            const bench::stopwatch watch;
            auto r = self->actors[2].call<&counter::add>(1);
            (void)co_await r;
            ns->push_back(watch.ns());
        }
    }
    static task<double> ask(driver_on_cluster* self, std::size_t to, int count) {
        auto r = self->actors[0].call<&counter::ask>(self->actors[to], count);
        co_return co_await r;
    }
};

/// True as often as that.
auto so_often(int count) {
    return [left = count]() mutable { return left-- > 0; };
}
/// True for so long.
auto so_long(std::chrono::milliseconds time) {
    return [until = std::chrono::steady_clock::now() + time] {
        return std::chrono::steady_clock::now() < until;
    };
}

bool latency(driver_on_cluster& d, bench::echo_peer& peer, const effort& e, const char* where) {
    const auto p50 = bench::in_turns<4>(
        e.rounds, {[&] { return bench::percentile(d.trips(so_often(e.trips)), 0.5); },
                   [&] { return d.worker_to_worker(1, e.trips); },
                   [&] { return d.worker_to_worker(2, e.trips); },
                   [&] { return peer.p50(*peer.remote, e.trips); }});
    bool ok = true;
    const auto tell = [&](const char* name, double ns) {
        ok &= bench::figure(fmt::format("cluster.{}.{}", name, where), ns, "ns")
                  .against("asio_ping_pong_tcp", p50[3].median)
                  .at_most(1.3)
                  .print();
    };
    tell("call_p50", p50[0].median);
    tell("worker_call_p50_same_node", p50[1].median);
    tell("worker_call_p50_across_nodes", p50[2].median);
    return ok;
}

task<double> flood_between(driver_on_cluster* d, std::size_t total) {
    auto r = d->actors[0].call<&counter::flood>(d->actors[2], total);
    co_return co_await r;
}

bool throughput(driver_on_cluster& d, const effort& e) {
    const auto tcp = net::address::tcp("127.0.0.1", 0);
    const auto [calls, between, frames] = bench::in_turns<3>(
        e.rounds,
        {[&] {
             const auto add = [&](long k) { return d.actors[2].call<&counter::add>(k); };
             return static_cast<double>(e.calls) /
                    bench::seconds([&] { d.loop.run(call_in_flight(add, e.calls)); });
         },
         [&] { return d.loop.run(flood_between(&d, e.calls)); },
         [&] {
             return bench::frames_per_second<net::connection, bench::server_of<net::endpoint>>(
                 tcp, e.calls);
         }});
    bool ok = bench::figure("cluster.calls_1000_in_flight", calls.median, "calls/s")
                  .against("net frames", frames.median)
                  .at_least(0.5)
                  .print();
    ok &= bench::figure("cluster.worker_calls_1000_in_flight", between.median, "calls/s")
              .against("net frames", frames.median)
              .at_least(0.5)
              .print();
    return ok;
}

// ---- while the head is away ---------------------------------------------------------------------

task<void> wait_complete(driver_on_cluster* d, const bench::cluster_processes* c) {
    auto complete = bench::cluster_processes::wait_complete(&d->network, c, 1);
    co_await complete;
}

/// Caller and worker on the first core; the head dies and comes back on the last.
bool head_restarts(driver_on_cluster& d, bench::cluster_processes& c, bench::echo_peer& peer,
                   const effort& e) {
    const std::vector<int> away{bench::usable_cores().back()};
    const auto p99 = [](std::vector<double> ns) { return bench::percentile(std::move(ns), 0.99); };
    double longest = 0;
    const auto [before, bare, during, bare_during] = bench::in_turns<4>(
        e.restarts, {[&] {
                         d.loop.run(wait_complete(&d, &c));
                         return p99(d.trips(so_long(e.window)));
                     },
                     [&] { return p99(peer.trips(*peer.remote, so_long(e.window))); },
                     [&] {
                         c.restart_head(e.head_away, away);
                         auto ns = d.trips(so_long(e.head_away + e.window));
                         longest = std::max(longest, bench::percentile(ns, 1.0));
                         d.loop.run(wait_complete(&d, &c));
                         return p99(std::move(ns));
                     },
                     [&] {
                         c.restart_head(e.head_away, away);
                         auto ns = peer.trips(*peer.remote, so_long(e.head_away + e.window));
                         return p99(std::move(ns));
                     }});
    bool ok = bench::figure("cluster.call_p99_head_restarts", during.median, "ns")
                  .against("before", before.median)
                  .at_most(2)
                  .print();
    ok &= bench::figure("cluster.call_p99_head_restarts_over_bare", during.median, "ns")
              .against("asio_ping_pong_tcp", bare.median)
              .at_most(2)
              .print();
    bench::figure("cluster.ping_pong_p99_head_restarts", bare_during.median, "ns")
        .against("asio_ping_pong_tcp", bare.median)
        .print();
    bench::figure("cluster.call_longest_head_restarts", longest / 1e6, "ms").print();
    d.loop.run(wait_complete(&d, &c));
    return ok;
}

// ---- first result, idle worker ------------------------------------------------------------------

std::chrono::steady_clock::time_point began;

/// In a copy of this program: milliseconds from run() to the first result, on standard output.
task<int> first_result() {
    auto r = remote<&square>(7);
    const long is = co_await r;
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - began;
    fmt::print("{} ms\n", took.count());
    co_return is == 49 ? 0 : 1;
}
double first_result_ms(const bench::cluster_processes& c, std::vector<std::string> arguments) {
    auto [ours, theirs] = make_pipe();
    auto how = bench::copy_of_this("first", c.secret(), std::move(arguments));
    how.stdout_fd = theirs.get();
    auto child = proc::child_process::spawn(how);
    theirs.reset();
    const auto said = bench::read_until(ours.get(), "ms\n");
    child.wait_blocking();
    return std::strtod(said.c_str(), nullptr);
}

task<void> wait_free(net::network* via, const bench::cluster_processes* c) {
    auto free = bench::cluster_processes::wait_complete(via, c, 0);
    co_await free;
}

void first_results(net::real_loop& loop, const bench::cluster_processes& c, const effort& e) {
    net::real_network network(loop);
    const auto [there, here] = bench::in_turns<2>(
        e.starts, {[&] {
                       loop.run(wait_free(&network, &c));
                       return first_result_ms(c, {"--address", c.address(), "--workers", "1"});
                   },
                   [&] { return first_result_ms(c, {"--workers", "1"}); }});
    loop.run(wait_free(&network, &c));
    bench::figure("cluster.first_result", there.median, "ms")
        .against("worker of this program", here.median)
        .print();
}

bool idle_workers(const driver_on_cluster& d) {
    double most = 0;
    for (const auto pid : d.pids) {
        std::ifstream file(fmt::format("/proc/{}/status", pid));
        for (std::string line; std::getline(file, line);)
            if (line.starts_with("VmRSS:"))
                most = std::max(most, std::strtod(line.c_str() + 6, nullptr) * 1024 / 1e6);
    }
    return bench::figure("cluster.idle_worker_rss", most, "MB").at_most(10).print();
}

// ---- leases -------------------------------------------------------------------------------------

/// A link to a head as a node or a driver has it, without all that is behind them.
struct plain_peer {
    std::shared_ptr<net::request_service> service = std::make_shared<net::request_service>();
    net::requests::handle way;

    static task<void> join(plain_peer* self, net::network* via, const bench::cluster_processes* c,
                           std::string name) {
        net::connection_options o;
        o.secret = c->secret();
        o.self.name = std::move(name);
        o.self.host = "bench";
        o.self.purpose = "cluster";
        auto dialing = net::link::connect(*via, c->head(), o);
        self->way = net::requests::over(co_await dialing, self->service);
    }
    static task<void> leave(plain_peer* self) {
        auto closing = self->way->close();
        co_await closing;
        auto done = self->service->close();
        co_await done;
        self->way = nullptr;
    }
};

/// A node of so many cpus whose workers are there as soon as they are asked for, and a driver that
/// asks.
struct lease_pair {
    plain_peer node, driver;
    channel<std::uint64_t> granted{16}, ended{16};
    std::uint64_t last = 0;

    static task<void> start(lease_pair* self, net::network* via,
                            const bench::cluster_processes* c) {
        self->node.service->on_tell<cluster::start_worker_order>(
            [](const cluster::start_worker_order&, const net::caller&) {});
        self->node.service->on_tell<cluster::stop_worker_order>(
            [self](const cluster::stop_worker_order& m, const net::caller&) {
                self->node.way->tell(cluster::worker_ended{{m.lease, true, "was asked to"}});
            });
        self->driver.service->on_tell<cluster::lease_granted>(
            [self](const cluster::lease_granted& m, const net::caller&) {
                (void)self->granted.try_send(std::uint64_t{m.lease});
            });
        self->driver.service->on_tell<cluster::lease_ended>(
            [self](const cluster::lease_ended& m, const net::caller&) {
                (void)self->ended.try_send(std::uint64_t{m.lease});
            });
        auto first = plain_peer::join(&self->node, via, c, "plain node");
        co_await first;
        cluster::node_hello mine;
        mine.name = "plain";
        mine.host = "bench";
        mine.resources = "cpu=1,plain=1";
        auto entering = self->node.way->call<cluster::node_welcome>(mine);
        (void)co_await entering;
        auto second = plain_peer::join(&self->driver, via, c, "plain driver");
        co_await second;
        cluster::driver_hello asks;
        asks.name = "plain";
        asks.host = "bench";
        asks.executable = "/nowhere";
        asks.port = 1;
        auto welcome = self->driver.way->call<cluster::driver_welcome>(asks);
        (void)co_await welcome;
    }
    static task<void> stop(lease_pair* self) {
        auto first = plain_peer::leave(&self->driver);
        co_await first;
        auto second = plain_peer::leave(&self->node);
        co_await second;
    }
    /// The median time from asking to being granted.
    static task<double> grants(lease_pair* self, int count) {
        std::vector<double> ns;
        for (int i = 0; i < count; ++i) {
            const auto number = ++self->last;
            const bench::stopwatch watch;
            self->driver.way->tell(cluster::want_lease{number, "cpu=1,plain=1", {}});
            auto granting = self->granted.receive();
            (void)co_await granting;
            ns.push_back(watch.ns());
            self->driver.way->tell(cluster::return_lease{number});
            auto ending = self->ended.receive();
            (void)co_await ending;
        }
        co_return bench::percentile(std::move(ns), 0.5);
    }
};

/// All on one core: what is counted are round trips, not wake-ups.
void leases(net::real_loop& loop, const bench::cluster_processes& c, bench::echo_peer& peer,
            const effort& e) {
    net::real_network network(loop);
    lease_pair pair;
    loop.run(lease_pair::start(&pair, &network, &c));
    const auto [grant, bare] = bench::in_turns<2>(
        e.rounds, {[&] { return loop.run(lease_pair::grants(&pair, e.trips / 4)); },
                   [&] { return peer.p50(*peer.remote, e.trips); }});
    loop.run(lease_pair::stop(&pair));
    bench::figure("cluster.lease_granted_p50", grant.median, "ns")
        .against("asio_ping_pong_tcp", bare.median)
        .print();
}

bool measure(const effort& e) {
    net::real_loop loop;
    bench::cluster_processes processes;
    bench::echo_peer peer;
    const auto cores = bench::usable_cores();
    const std::vector<int> first{cores.front()}, last{cores.back()};

    first_results(loop, processes, e);
    auto all = processes.pids();
    all.push_back(peer.process.pid());
    bench::place(first, first, all);
    leases(loop, processes, peer, e);
    bench::place(cores, cores, all);

    driver_on_cluster driver(loop, processes);
    bool ok = idle_workers(driver);
    const auto& workers = driver.pids;
    const std::vector<pid_t> callees{workers[1], workers[2], peer.process.pid()};
    bench::place(first, first, {workers[0], workers[1], workers[2], peer.process.pid()});
    ok &= latency(driver, peer, e, "one_core");
    if (cores.size() > 1) {
        bench::place(first, last, callees);
        ok &= latency(driver, peer, e, "two_cores");
    }
    bench::place(first, first, callees);
    ok &= head_restarts(driver, processes, peer, e);
    bench::place(cores, cores, {workers[0], workers[1], workers[2], peer.process.pid()});
    return throughput(driver, e) && ok;
}

} // namespace

int main(int argc, char** argv) {
    if (program::is_worker()) return program::worker_main();
    if (std::getenv(bench::echo_variable) != nullptr) return bench::echo_main();
    if (const char* const role = std::getenv(bench::role_variable)) {
        began = std::chrono::steady_clock::now();
        if (std::string_view(role) == "first") return skein::run(argc, argv, first_result);
        return bench::play_role(role, argc, argv);
    }
    effort e;
    if (argc > 1 && std::string_view(argv[1]) == "--quick") e = {1, 200, 1, 1, 5000, 100ms, 50ms};
    return measure(e) ? 0 : 1;
}
