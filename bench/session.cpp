// SPDX-License-Identifier: Apache-2.0
// Calls from a thread that is no coroutine, beside the same calls from a coroutine of the same
// driver: calls per second with 1,000 in flight, from one thread and from two, and the median of a
// blocking round trip.
#include "bench.hpp"

#include <skein/program/session.hpp>

#include <chrono>
#include <thread>
#include <vector>

namespace {

using namespace skein;

constexpr int round_trips = 2000;
constexpr std::size_t in_flight = 1000, total = 200'000;

struct counter {
    long n = 0;
    long add(long k) { return n += k; }
};
long square(long x) { return x * x; }

double ns_since(std::chrono::steady_clock::time_point begin) {
    return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin)
        .count();
}

/// Keeps 1,000 calls under way: the oldest is waited for, then another is made.
template <class Call>
void from_thread(Call call, std::size_t calls) {
    std::vector<pending<long>> window(in_flight);
    for (std::size_t i = 0; i < calls; ++i) {
        auto& p = window[i % in_flight];
        if (p) (void)std::move(p).get();
        p = call(static_cast<long>(i));
    }
    for (auto& p : window) (void)std::move(p).get();
}
template <class Call>
task<void> from_coroutine(Call call, std::size_t calls) {
    std::vector<ref<long>> window(in_flight);
    for (std::size_t i = 0; i < calls; ++i) {
        auto& r = window[i % in_flight];
        if (r) (void)co_await r;
        r = call(static_cast<long>(i));
    }
    for (auto& r : window) (void)co_await r;
}
task<void> actor_calls() {
    auto c = co_await get_actor<counter>("bench");
    auto work = from_coroutine([c](long i) { return c.call<&counter::add>(i); }, total);
    co_await work;
}
task<void> task_calls() {
    auto work = from_coroutine([](long i) { return remote<&square>(i); }, total);
    co_await work;
}
task<double> round_trip() {
    auto c = co_await get_actor<counter>("bench");
    std::vector<double> ns;
    for (int i = 0; i < round_trips; ++i) {
        const auto begin = std::chrono::steady_clock::now();
        auto r = c.call<&counter::add>(1);
        (void)co_await r;
        ns.push_back(ns_since(begin));
    }
    co_return bench::percentile(std::move(ns), 0.5);
}

template <class Work>
double calls_per_second(Work work) {
    return static_cast<double>(total) / bench::seconds(work);
}

bool measure(session& cluster) {
    const auto c = actor<counter>.with({.name = "bench"}).on(cluster)();
    const auto add = [&](long i) { return c.call<&counter::add>(i); };
    const auto run_task = [&](long i) { return cluster.submit<&square>(i); };
    const auto two_threads = [&] {
        std::jthread other([&] { from_thread(add, total / 2); });
        from_thread(add, total / 2);
    };
    const auto blocking = [&] {
        std::vector<double> ns;
        for (int i = 0; i < round_trips; ++i) {
            const auto begin = std::chrono::steady_clock::now();
            (void)c.call<&counter::add>(1).get();
            ns.push_back(ns_since(begin));
        }
        return bench::percentile(std::move(ns), 0.5);
    };
    const auto [thread, both, inside, tasks, tasks_inside] = bench::in_turns<5>(
        7, {[&] { return calls_per_second([&] { from_thread(add, total); }); },
            [&] { return calls_per_second(two_threads); },
            [&] { return calls_per_second([&] { cluster.run(actor_calls); }); },
            [&] { return calls_per_second([&] { from_thread(run_task, total); }); },
            [&] { return calls_per_second([&] { cluster.run(task_calls); }); }});
    bool ok = bench::figure("session.actor_calls_1000_in_flight", thread.median, "calls/s")
                  .against("a coroutine of the driver", inside.median)
                  .at_least(0.25)
                  .print();
    bench::figure("session.actor_calls_two_threads", both.median, "calls/s")
        .against("a coroutine of the driver", inside.median)
        .print();
    ok &= bench::figure("session.tasks_1000_in_flight", tasks.median, "calls/s")
              .against("a coroutine of the driver", tasks_inside.median)
              .at_least(0.25)
              .print();

    const auto [got, awaited] =
        bench::in_turns<2>(7, {blocking, [&] { return cluster.run(round_trip); }});
    ok &= bench::figure("session.blocking_call_p50", got.median, "ns")
              .against("co_await in the driver", awaited.median)
              .at_most(4)
              .print();
    return ok;
}

} // namespace

int main() {
    run_options how;
    how.workers = 1;
    session cluster(how);
    return measure(cluster) ? 0 : 1;
}
