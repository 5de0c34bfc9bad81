// SPDX-License-Identifier: Apache-2.0
// Objects between processes of a host: put, take, return and view of 64 MiB, small values, 10,000
// refs in a call, a result, a wait, a get; and what memory it takes.
//
// With SKEIN_PYTHON set to a Python that has ray, both sides take turns.
#include "bench.hpp"
#include "ray_side.hpp"

#include <skein/core/scope.hpp>
#include <skein/core/sleep.hpp>
#include <skein/net/real_loop.hpp>
#include <skein/net/real_network.hpp>
#include <skein/objects/local_store.hpp>
#include <skein/objects/object.hpp>
#include <skein/proc/children.hpp>
#include <skein/program/run.hpp>
#include <skein/rt/put.hpp>
#include <skein/rt/runtime.hpp>
#include <skein/rt/view.hpp>
#include <skein/rt/wait_refs.hpp>
#include <skein/rt/worker_link.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <malloc.h>
#include <unistd.h>

namespace {

using namespace skein;
using numbers = std::vector<std::uint32_t>;

constexpr std::size_t mebi = std::size_t{1} << 20;
constexpr std::size_t large_bytes = 64 * mebi;
constexpr std::size_t many = 10'000;
constexpr std::size_t small_batch = 1000;

/// How long the rounds are.
struct effort {
    int rounds = 5;
    double seconds = 1;
    int readers = 4;
    std::size_t read_bytes = 1024 * mebi;
    int dropped = 3000;
    std::chrono::seconds rest{15};
};

numbers numbers_of(std::size_t bytes) { return numbers(bytes / sizeof(std::uint32_t), 1); }
std::uint64_t total(std::span<const std::uint32_t> all) {
    return std::accumulate(all.begin(), all.end(), std::uint64_t{0});
}

/// A line of a file in /proc, in MiB.
double memory_of(pid_t pid, std::string_view file, const std::string& key) {
    ::malloc_trim(0);
    std::ifstream from(fmt::format("/proc/{}/{}", pid, file));
    for (std::string word; from >> word;)
        if (double kib = 0; word == key && from >> kib) return kib / 1024;
    return 0;
}

// ---- what runs on workers -----------------------------------------------------------------------

numbers give_back(numbers all) { return all; }
numbers copy_of(std::span<const std::uint32_t> all) { return {all.begin(), all.end()}; }
numbers make(std::size_t bytes) { return numbers_of(bytes); }
std::size_t count(std::vector<ref<int>> refs) { return refs.size(); }
std::size_t count_objects(std::vector<ref<numbers>> refs) { return refs.size(); }
std::vector<ref<numbers>> pass_back(std::vector<ref<numbers>> refs) { return refs; }
task<std::vector<ref<int>>> make_refs(int n) {
    std::vector<ref<int>> all;
    for (int i = 0; i < n; ++i) {
        auto putting = put(int{i});
        all.push_back(co_await putting);
    }
    co_return all;
}
struct reader {
    std::optional<view<numbers>> kept;
    std::uint64_t keep(view<numbers> one) {
        kept = std::move(one);
        return total(**kept);
    }
    numbers make(std::size_t bytes) { return numbers_of(bytes); }
    int pid() const { return ::getpid(); }
    double resident() const { return memory_of(::getpid(), "status", "VmRSS:"); }
};

// ---- a driver -----------------------------------------------------------------------------------

/// With workers and, perhaps, a store. The loop runs only during measurements.
struct our_side {
    net::real_loop loop;
    net::real_network network{loop};
    proc::local_children children{loop};
    rt::runtime driver{rt::runtime_options{}};
    std::shared_ptr<objects::local_store> store;
    std::shared_ptr<objects::store_client> client;
    program::local_workers workers;
    scope services;

    our_side(int count, bool has_store)
        : store(has_store ? std::make_shared<objects::local_store>(objects::default_store_bytes())
                          : nullptr),
          workers(loop, network, children, driver, options(count, store)) {
        loop.run(start(this));
    }
    our_side(const our_side&) = delete;
    our_side& operator=(const our_side&) = delete;
    ~our_side() { loop.run(stop(this)); }

    static program::local_workers_options options(int count,
                                                  std::shared_ptr<objects::local_store> store) {
        program::local_workers_options o;
        o.count = count;
        o.store = std::move(store);
        return o;
    }
    static task<void> start(our_side* self) {
        if (self->store) {
            self->client =
                self->store->client(self->loop, objects::process_id(self->driver.incarnation()));
            rt::use_store(self->driver, self->client, [store = self->store] {
                store->start();
                return std::string(); // no other node
            });
        }
        self->services.spawn(self->workers.serve());
        co_return;
    }
    static task<void> stop(our_side* self) {
        self->workers.stop();
        auto bye = self->driver.close();
        co_await bye;
        auto joined = self->services.join();
        co_await joined;
        if (!self->client) co_return;
        auto left = self->client->close();
        co_await left;
    }
    template <class T>
    T run(task<T> work) {
        const rt::runtime::use current(driver);
        return loop.run(std::move(work));
    }
    /// Calls per second of `call`, which makes so many of them, for so long, and once at least.
    double rate(const std::function<task<void>()>& call, std::size_t calls, double seconds) {
        return run(rate_of(&call, calls, seconds));
    }
    static task<double> rate_of(const std::function<task<void>()>* call, std::size_t calls,
                                double seconds) {
        const auto begin = std::chrono::steady_clock::now();
        std::size_t done = 0;
        double took = 0;
        while (done == 0 || took < seconds) {
            auto once = (*call)();
            co_await once;
            done += calls;
            took = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
        }
        co_return static_cast<double>(done) / took;
    }
};

// ---- what is measured ---------------------------------------------------------------------------

task<void> put_one(const numbers* value) {
    auto putting = put(*value);
    (void)co_await putting;
}
task<void> take_and_return(const numbers* value) {
    const auto called = remote<&give_back>(*value);
    const auto back = co_await called;
    if (back.size() != value->size()) std::fprintf(stderr, "%zu numbers\n", back.size());
}
/// The same with what stays in the store on both sides.
task<void> take_and_return_views(const numbers* value) {
    auto putting = put(*value);
    const auto stored = co_await putting;
    const auto called = remote<&copy_of>(stored);
    auto looking = view(called);
    const auto back = co_await looking;
    if ((*back).size() != value->size()) std::fprintf(stderr, "%zu numbers\n", (*back).size());
}
task<void> put_small() {
    for (std::size_t i = 0; i < small_batch; ++i) {
        auto putting = put(7);
        (void)co_await putting;
    }
}
task<ref<int>> one_small() {
    auto putting = put(7);
    co_return co_await putting;
}
task<void> get_small(const ref<int>* of) {
    for (std::size_t i = 0; i < small_batch; ++i) bench::keep(co_await *of);
}
template <auto F, class T>
task<void> as_argument(const std::vector<ref<T>>* refs) {
    const auto counted = remote<F>(*refs);
    if (co_await counted != refs->size()) std::fprintf(stderr, "refs are missing\n");
}
task<void> as_result() {
    const auto made = remote<&make_refs>(int{many});
    const auto all = co_await made;
    if (all.size() != many) std::fprintf(stderr, "refs are missing\n");
}
task<void> there_and_back(const std::vector<ref<numbers>>* refs) {
    const auto passed = remote<&pass_back>(*refs);
    const auto all = co_await passed;
    if (all.size() != refs->size()) std::fprintf(stderr, "refs are missing\n");
}
template <class T>
task<void> in_wait(const std::vector<ref<T>>* refs) {
    auto waiting = skein::wait(*refs, refs->size());
    const auto seen = co_await waiting;
    if (seen.done.size() != refs->size()) std::fprintf(stderr, "refs are missing\n");
}
task<void> in_get(const std::vector<ref<int>>* refs) {
    std::uint64_t sum = 0;
    for (const auto& one : *refs) sum += static_cast<std::uint64_t>(co_await one);
    bench::keep(sum);
}
task<void> in_views(const std::vector<ref<numbers>>* refs) {
    std::uint64_t sum = 0;
    for (const auto& one : *refs) {
        auto looking = view(one);
        const auto seen = co_await looking;
        sum += (*seen).front();
    }
    bench::keep(sum);
}
template <class T>
task<std::vector<ref<T>>> put_many(T value) {
    std::vector<ref<T>> all;
    for (std::size_t i = 0; i < many; ++i) {
        auto putting = put(value);
        all.push_back(co_await putting);
    }
    co_return all;
}

bool large_values(our_side& ours, our_side& messages, bench::ray_side* ray, const effort& e) {
    const auto value = numbers_of(large_bytes);
    auto copy = value;
    const auto gb_per_s = [](double calls) { return calls * large_bytes / 1e9; };
    const auto rays = [&](const char* shape) { return ray ? ray->rate(shape, e.seconds) : 0; };
    const auto [warm, puts, ray_puts] = bench::in_turns<3>(
        e.rounds,
        {[&] {
             constexpr int times = 10;
             const double took = bench::seconds([&] {
                 for (int i = 0; i < times; ++i) {
                     std::memcpy(copy.data(), value.data(), large_bytes);
                     bench::keep(copy.data());
                 }
             });
             return gb_per_s(times / took);
         },
         [&] { return gb_per_s(ours.rate([&] { return put_one(&value); }, 1, e.seconds)); },
         [&] { return gb_per_s(rays("put_64_mib")); }});
    bool ok = bench::figure("objects.put_64_mib", puts.median, "GB/s")
                  .against("warm memcpy", warm.median)
                  .at_least(0.8)
                  .print();
    if (ray)
        ok &= bench::figure("objects.put_64_mib_and_ray", puts.median, "GB/s")
                  .against("ray", ray_puts.median)
                  .at_least(2)
                  .with("ray", ray->version())
                  .print();
    const auto once = [&](our_side& side) {
        return side.rate([&] { return take_and_return(&value); }, 1, e.seconds);
    };
    const auto [stored, sent, viewed, by_ray] = bench::in_turns<4>(
        e.rounds,
        {[&] { return once(ours); }, [&] { return once(messages); },
         [&] { return ours.rate([&] { return take_and_return_views(&value); }, 1, e.seconds); },
         [&] { return rays("take_and_return_64_mib"); }});
    ok &= bench::figure("objects.take_and_return_64_mib", stored.median, "calls/s")
              .against("messages", sent.median)
              .at_least(3)
              .print();
    auto by_views =
        bench::figure("objects.take_and_return_64_mib_by_views", viewed.median, "calls/s");
    if (ray)
        std::move(by_views).against("ray", by_ray.median).with("ray", ray->version()).print();
    else
        by_views.print();
    return ok;
}

task<double> copied_by_a_view() {
    const auto made = remote<&make>(std::size_t{large_bytes});
    co_await as_task(ref<numbers>(made));
    const auto before = objects::copied();
    auto looking = view(made);
    const auto seen = co_await looking;
    if (total(*seen) != large_bytes / sizeof(std::uint32_t)) std::fprintf(stderr, "a wrong sum\n");
    const auto after = objects::copied();
    co_return static_cast<double>(after.in - before.in + after.out - before.out);
}

bool small_values(our_side& ours, bench::ray_side* ray, const effort& e) {
    const auto one = ours.run(one_small());
    bool ok = true;
    const auto against_ray = [&](const char* shape, const std::function<task<void>()>& call) {
        const auto [mine, theirs] =
            bench::in_turns<2>(e.rounds, {[&] { return ours.rate(call, small_batch, e.seconds); },
                                          [&] { return ray ? ray->rate(shape, e.seconds) : 0; }});
        auto figure = bench::figure(fmt::format("objects.{}", shape), mine.median, "1/s");
        if (!ray) return void(std::move(figure).print());
        const bool met = std::move(figure)
                             .against("ray", theirs.median)
                             .at_least(100)
                             .with("ray", ray->version())
                             .print();
        ok &= met;
    };
    against_ray("small_put", [] { return put_small(); });
    against_ray("small_get", [&] { return get_small(&one); });
    return ok;
}

bool many_refs(our_side& ours, bench::ray_side* ray, const effort& e) {
    const auto refs = ours.run(put_many(7));
    const auto stored = ours.run(put_many(numbers_of(80'000)));
    bool ok = true;
    // 100 times as fast as Ray, or 50 ms.
    const auto timed = [&](const std::string& name, const char* shape,
                           const std::function<task<void>()>& call) {
        const auto [mine, theirs] = bench::in_turns<2>(
            e.rounds, {[&] { return 1e3 / ours.rate(call, 1, e.seconds); },
                       [&] { return ray ? 1e3 / ray->rate(shape, e.seconds) : 0; }});
        auto figure = bench::figure("objects." + name, mine.median, "ms");
        auto&& told = ray ? std::move(figure)
                                .with("ray", ray->version())
                                .with("ray_ms", fmt::format("{:.4g}", theirs.median))
                          : std::move(figure);
        const bool is_compared = ray && mine.median > 50;
        const bool met = is_compared
                             ? std::move(told).against("ray", theirs.median).at_most(0.01).print()
                             : std::move(told).at_most(50).print();
        ok &= met;
    };
    timed("10000_refs_as_argument", "10000_refs_as_argument",
          [&] { return as_argument<&count>(&refs); });
    timed("10000_refs_as_result", "10000_refs_as_result", [] { return as_result(); });
    timed("10000_refs_in_wait", "10000_refs_in_wait", [&] { return in_wait(&refs); });
    timed("10000_refs_in_get", "10000_refs_in_get", [&] { return in_get(&refs); });
    timed("10000_refs_of_objects_as_argument", "10000_refs_as_argument",
          [&] { return as_argument<&count_objects>(&stored); });
    timed("10000_refs_of_objects_there_and_back", "10000_refs_as_result",
          [&] { return there_and_back(&stored); });
    timed("10000_refs_of_objects_in_wait", "10000_refs_in_wait", [&] { return in_wait(&stored); });
    timed("10000_refs_of_objects_in_views", "10000_refs_in_get", [&] { return in_views(&stored); });
    return ok;
}

// ---- memory -------------------------------------------------------------------------------------

/// PSS of the driver and of those that read one object, in MiB.
task<double> memory_of_readers(const effort* e) {
    std::vector<actor_handle<reader>> all;
    std::set<int> pids{::getpid()};
    for (int i = 0; i < e->readers; ++i) {
        auto making = actor<reader>();
        all.push_back(co_await making);
        const auto asked = all.back().call<&reader::pid>();
        pids.insert(co_await asked);
    }
    ref<numbers> shared;
    {
        auto putting = put(numbers_of(e->read_bytes)); // which has the numbers until it goes
        shared = co_await putting;
    }
    for (const auto& one : all) {
        const auto kept = one.call<&reader::keep>(shared);
        (void)co_await kept;
    }
    if (pids.size() != all.size() + 1) std::fprintf(stderr, "readers share a process\n");
    double sum = 0;
    for (const auto pid : pids) sum += memory_of(pid, "smaps_rollup", "Pss:");
    co_return sum;
}

/// How much more memory driver and maker have a while after many results were dropped, in MiB.
task<std::pair<double, double>> left_of_dropped(const effort* e) {
    auto making = actor<reader>();
    const auto maker = co_await making;
    const auto drop_some = [](const actor_handle<reader>* maker, int n) -> task<void> {
        for (int i = 0; i < n; i += 10) {
            std::vector<ref<numbers>> ten;
            for (int k = 0; k < 10; ++k)
                ten.push_back(maker->call<&reader::make>(std::size_t{mebi}));
            for (const auto& one : ten) {
                auto looking = view(one);
                const auto seen = co_await looking;
                if (total(*seen) != mebi / 4) std::fprintf(stderr, "a wrong sum\n");
            }
        }
    };
    const auto resident = [] { return memory_of(::getpid(), "status", "VmRSS:"); };
    auto first = drop_some(&maker, 10);
    co_await first;
    co_await sleep_for(e->rest);
    const auto asked = maker.call<&reader::resident>();
    const double there = co_await asked, here = resident();
    auto rest = drop_some(&maker, e->dropped);
    co_await rest;
    co_await sleep_for(e->rest);
    const auto asked_again = maker.call<&reader::resident>();
    const double then = co_await asked_again;
    co_return std::pair(then - there, resident() - here);
}

bool memory(const effort& e) {
    bool ok = true;
    {
        our_side ours(e.readers, true);
        const double gib = ours.run(memory_of_readers(&e)) / 1024;
        ok &= bench::figure("objects.pss_of_1_gib_read_by_4_workers", gib, "GiB")
                  .at_most(1.1)
                  .print();
    }
    our_side ours(1, true);
    const auto [maker, driver] = ours.run(left_of_dropped(&e));
    ok &= bench::figure("objects.3000_results_of_1_mib_dropped_maker", maker, "MiB")
              .at_most(16)
              .print();
    ok &= bench::figure("objects.3000_results_of_1_mib_dropped_driver", driver, "MiB")
              .at_most(16)
              .print();
    return ok;
}

} // namespace

int main(int argc, char** argv) {
    if (program::is_worker()) return program::worker_main();
    effort e;
    if (argc > 1 && std::string_view(argv[1]) == "--quick")
        e = {1, 0.05, 4, 64 * mebi, 100, std::chrono::seconds(11)};
    if (argc > 1 && std::string_view(argv[1]) == "--memory") return memory(e) ? 0 : 1;
    bool ok = true;
    {
        const char* python = std::getenv("SKEIN_PYTHON");
        const auto ray = bench::ray_side::start(python, "/objects_ray.py");
        if (!ray) fmt::print(stderr, "bench objects: SKEIN_PYTHON names no Python with ray\n");
        our_side ours(2, true), messages(2, false);
        ok &= large_values(ours, messages, ray.get(), e);
        ok &= bench::figure("objects.copied_by_a_view_of_64_mib", ours.run(copied_by_a_view()),
                            "bytes")
                  .at_most(0)
                  .print();
        ok &= small_values(ours, ray.get(), e);
        ok &= many_refs(ours, ray.get(), e);
    }
    return memory(e) && ok ? 0 : 1;
}
