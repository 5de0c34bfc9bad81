// SPDX-License-Identifier: Apache-2.0
// Streams between two processes: items per second beside calls with 1,000 in flight, bytes per second
// of large items; and memory on both sides of a slow reader, and behind 10,000 streams that ended.
#include "bench.hpp"

#include <skein/core/scope.hpp>
#include <skein/net/real_loop.hpp>
#include <skein/net/real_network.hpp>
#include <skein/proc/children.hpp>
#include <skein/program/run.hpp>
#include <skein/rt/runtime.hpp>
#include <skein/rt/stream.hpp>

#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include <malloc.h>
#include <unistd.h>

namespace {

using namespace skein;

constexpr std::size_t in_flight = 1000;
constexpr double mib = 1024.0 * 1024.0;

/// Memory of this process that no other one has, in MiB.
double own_mib() {
    ::malloc_trim(0);
    std::ifstream file("/proc/self/statm");
    double all = 0, resident = 0, shared = 0;
    file >> all >> resident >> shared;
    return (resident - shared) * static_cast<double>(::sysconf(_SC_PAGESIZE)) / mib;
}

generator<long> count_to(long n) {
    for (long i = 0; i < n; ++i) co_yield i;
}
generator<std::string> pieces(long n, std::size_t bytes) {
    const std::string one(bytes, 'x');
    for (long i = 0; i < n; ++i) co_yield one;
}

struct counter {
    long n = 0;
    long add(long k) { return n += k; }
    generator<long> counts(long to) { return count_to(to); }
    double memory() const { return own_mib(); }
};

/// A driver with one worker, over a socket pair. The loop runs only during measurements.
struct worker_pool {
    net::real_loop& loop;
    net::real_network network;
    proc::local_children children;
    rt::runtime driver;
    program::local_workers workers;
    scope services;
    actor_handle<counter> actor;

    explicit worker_pool(net::real_loop& l)
        : loop(l), network(l), children(l), driver(rt::runtime_options{}),
          workers(l, network, children, driver, options()) {
        loop.run(start(this));
    }
    ~worker_pool() { loop.run(stop(this)); }

    static program::local_workers_options options() {
        program::local_workers_options o;
        o.count = 1;
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

task<void> call_many(worker_pool* c, std::size_t total) {
    std::vector<ref<long>> window(in_flight);
    for (std::size_t i = 0; i < total; ++i) {
        auto& r = window[i % in_flight];
        if (r) (void)co_await r;
        r = c->actor.call<&counter::add>(1);
    }
    for (auto& r : window) (void)co_await r;
}
/// Begins a stream inside the loop and takes all of it.
template <class Begin>
task<void> take_all(Begin begin, std::size_t expected) {
    auto s = begin();
    std::size_t items = 0;
    while (auto one = co_await s.next()) ++items;
    if (items != expected) std::fprintf(stderr, "%zu of %zu items\n", items, expected);
}

bool rates(worker_pool& c) {
    constexpr std::size_t total = 300'000;
    const auto per_second = [](std::size_t n, double seconds) {
        return static_cast<double>(n) / seconds;
    };
    const auto items = [&](std::uint32_t window) {
        return [&c, per_second, window] {
            const auto begin = [&c, window] {
                return stream<&count_to>.on(c.driver).with({.items = window})(long{total});
            };
            return per_second(total, bench::seconds([&] { c.loop.run(take_all(begin, total)); }));
        };
    };
    const auto [calls, by_64, by_1000, of_method] = bench::in_turns<4>(
        7, {[&] {
                return per_second(total, bench::seconds([&] { c.loop.run(call_many(&c, total)); }));
            },
            items(64), items(1000),
            [&] {
                const auto begin = [&c] { return c.actor.stream<&counter::counts>(long{total}); };
                return per_second(total,
                                  bench::seconds([&] { c.loop.run(take_all(begin, total)); }));
            }});
    bool ok = bench::figure("streams.items", by_64.median, "items/s")
                  .against("actor calls, 1000 in flight", calls.median)
                  .at_least(0.5)
                  .print();
    bench::figure("streams.items_window_1000", by_1000.median, "items/s").print();
    bench::figure("streams.items_of_a_method", of_method.median, "items/s").print();
    return ok;
}

bool bytes(worker_pool& c) {
    constexpr std::size_t each = std::size_t{256} << 10, total = 4000;
    const auto begin = [&c] {
        return stream<&pieces>.on(c.driver)(long{total}, std::size_t{each});
    };
    const auto [rate] =
        bench::in_turns<1>(3, {[&] {
                               const double seconds =
                                   bench::seconds([&] { c.loop.run(take_all(begin, total)); });
                               return static_cast<double>(each * total) / 1e9 / seconds;
                           }});
    bench::figure("streams.bytes_of_256_kib_items", rate.median, "GB/s").print();
    return true;
}

/// How much more memory driver and worker hold while, and after, work runs.
struct growth {
    double here = 0, there = 0;
};
task<growth> grow_with(worker_pool* c, task<void> work) {
    auto first = c->actor.call<&counter::memory>();
    const double before = own_mib(), there = co_await first;
    co_await work;
    auto last = c->actor.call<&counter::memory>();
    growth out;
    out.here = own_mib() - before;
    out.there = co_await last - there;
    co_return out;
}
/// Takes a part, slowly; what both sides hold then is looked at while the stream is open.
task<growth> read_slowly(worker_pool* c) {
    constexpr long pieces_of_64k = 160'000; // 10 GB
    constexpr std::size_t each = std::size_t{64} << 10;
    growth most;
    auto first = c->actor.call<&counter::memory>();
    const double before = own_mib(), there = co_await first;
    auto s = stream<&pieces>.on(c->driver)(long{pieces_of_64k}, std::size_t{each});
    long items = 0;
    while (auto one = co_await s.next()) {
        if (++items % 16'000 != 0) continue;
        co_await sleep_for(std::chrono::milliseconds(100)); // all that may come has come
        auto now = c->actor.call<&counter::memory>();
        most.here = std::max(most.here, own_mib() - before);
        most.there = std::max(most.there, co_await now - there);
    }
    co_return most;
}
task<void> end_many(worker_pool* c) {
    for (int round = 0; round < 100; ++round) {
        std::vector<item_stream<long>> all;
        for (int i = 0; i < 100; ++i) all.push_back(stream<&count_to>.on(c->driver)(long{i % 5}));
        for (std::size_t i = 0; i < all.size(); i += 2) {
            std::size_t items = 0;
            while (auto one = co_await all[i].next()) ++items;
            if (items != i % 5) std::fprintf(stderr, "%zu of %zu items\n", items, i % 5);
        }
    }
}
bool memory(worker_pool& c) {
    const double window = 4;
    const auto slow = c.loop.run(read_slowly(&c));
    bool ok = bench::figure("streams.slow_reader_10_gb_reader", slow.here, "MiB")
                  .at_most(window + 16)
                  .print();
    ok &= bench::figure("streams.slow_reader_10_gb_producer", slow.there, "MiB")
              .at_most(window + 16)
              .print();
    const auto ended = c.loop.run(grow_with(&c, end_many(&c)));
    ok &= bench::figure("streams.10000_ended_reader", ended.here, "MiB").at_most(16).print();
    ok &= bench::figure("streams.10000_ended_producer", ended.there, "MiB").at_most(16).print();
    return ok;
}

} // namespace

int main() {
    if (program::is_worker()) return program::worker_main();
    net::real_loop loop;
    worker_pool c(loop);
    bool ok = rates(c);
    ok &= bytes(c);
    ok &= memory(c);
    return ok ? 0 : 1;
}
