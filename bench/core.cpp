// SPDX-License-Identifier: Apache-2.0
// What the coroutine machine costs: awaiting a task, spawning and joining, timers, channels. The
// baselines are the same programs written with asio::awaitable on an io_context, in the same run.

#include "bench.hpp"

#include <skein/core/channel.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/sleep.hpp>
#include <skein/core/task.hpp>
#include <skein/core/timer_wheel.hpp>
#include <skein/net/asio.hpp>
#include <skein/net/real_loop.hpp>

#include <asio/awaitable.hpp>
#include <asio/co_spawn.hpp>
#include <asio/detached.hpp>
#include <asio/experimental/channel.hpp>
#include <asio/redirect_error.hpp>
#include <asio/use_awaitable.hpp>

#include <exception>
#include <memory>
#include <vector>

namespace {

using skein::task;

// ---- one await, and four inside each other ------------------------------------------------------

task<int> leaf(int x) { co_return x + 1; }
task<int> nested(int depth, int x) {
    if (depth == 0) co_return x + 1;
    auto t = nested(depth - 1, x);
    co_return co_await std::move(t);
}
task<long> await_many(int n) {
    long sum = 0;
    for (int i = 0; i < n; ++i) {
        auto t = leaf(i);
        sum += co_await std::move(t);
    }
    co_return sum;
}
task<long> await_nested(int n) {
    long sum = 0;
    for (int i = 0; i < n; ++i) {
        auto t = nested(3, i);
        sum += co_await std::move(t);
    }
    co_return sum;
}

asio::awaitable<int> asio_leaf(int x) { co_return x + 1; }
asio::awaitable<int> asio_nested(int depth, int x) {
    if (depth == 0) co_return x + 1;
    co_return co_await asio_nested(depth - 1, x);
}
asio::awaitable<long> asio_await_many(int n) {
    long sum = 0;
    for (int i = 0; i < n; ++i) sum += co_await asio_leaf(i);
    co_return sum;
}
asio::awaitable<long> asio_await_nested(int n) {
    long sum = 0;
    for (int i = 0; i < n; ++i) sum += co_await asio_nested(3, i);
    co_return sum;
}

[[gnu::noinline]] int plain(int x) {
    bench::keep(x);
    return x + 1;
}

/// Runs one awaitable to its end.
template <class T>
T run_asio(asio::awaitable<T> work) {
    asio::io_context context(1);
    std::exception_ptr failure;
    T value{};
    asio::co_spawn(context, std::move(work), [&](std::exception_ptr e, T v) {
        failure = e;
        value = v;
    });
    context.run();
    if (failure) std::rethrow_exception(failure);
    return value;
}
template <class T>
T run_skein(task<T> work) {
    skein::net::real_loop loop;
    return loop.run(std::move(work));
}

// ---- spawn and join -----------------------------------------------------------------------------

task<void> child(int* done) {
    ++*done;
    co_return;
}
task<int> spawn_many(int n) {
    int done = 0;
    skein::scope s;
    for (int i = 0; i < n; ++i) s.spawn(child(&done));
    auto joined = s.join();
    co_await joined;
    co_return done;
}
asio::awaitable<void> asio_child(int* done) {
    ++*done;
    co_return;
}
int asio_spawn_many(int n) {
    asio::io_context context(1);
    int done = 0, ended = 0;
    for (int i = 0; i < n; ++i)
        asio::co_spawn(context, asio_child(&done), [&ended](std::exception_ptr) { ++ended; });
    context.run();
    return ended;
}

// ---- channels: a value goes there and back ------------------------------------------------------

task<void> echo(skein::channel<int>* in, skein::channel<int>* out) {
    while (auto value = co_await in->receive()) co_await out->send(*value);
}
task<long> ping_pong(int n) {
    skein::channel<int> there(1), back(1);
    skein::scope s;
    s.spawn(echo(&there, &back));
    long sum = 0;
    for (int i = 0; i < n; ++i) {
        co_await there.send(i);
        const auto value = co_await back.receive();
        sum += *value;
    }
    there.close();
    auto joined = s.join();
    co_await joined;
    co_return sum;
}
using asio_channel = asio::experimental::channel<void(asio::error_code, int)>;
asio::awaitable<void> asio_echo(asio_channel* in, asio_channel* out) {
    asio::error_code failed;
    for (;;) {
        const int value =
            co_await in->async_receive(asio::redirect_error(asio::use_awaitable, failed));
        if (failed) co_return;
        co_await out->async_send(asio::error_code(), value, asio::use_awaitable);
    }
}
asio::awaitable<long> asio_ping_pong(int n) {
    auto executor = co_await asio::this_coro::executor;
    asio_channel there(executor, 1), back(executor, 1);
    long sum = 0;
    bool ended = false;
    asio::co_spawn(executor, asio_echo(&there, &back), [&](std::exception_ptr) { ended = true; });
    for (int i = 0; i < n; ++i) {
        co_await there.async_send(asio::error_code(), i, asio::use_awaitable);
        sum += co_await back.async_receive(asio::use_awaitable);
    }
    there.close();
    while (!ended) co_await asio::post(executor, asio::use_awaitable);
    co_return sum;
}

// ---- timers -------------------------------------------------------------------------------------

struct silent_timer : skein::timer_node {
    silent_timer() : timer_node([](skein::timer_node&) {}) {}
};
/// Sets and cancels `n` timers, with ten thousand others set, as calls with a deadline do.
double wheel_set_cancel(std::size_t n) {
    skein::timer_wheel wheel;
    std::vector<silent_timer> others(10'000);
    for (std::size_t i = 0; i < others.size(); ++i)
        wheel.set(others[i], skein::time_point(std::chrono::milliseconds(1000 + i * 7 % 5000)));
    silent_timer timer;
    return bench::cpu_ns_per(n, [&] {
        for (std::size_t i = 0; i < n; ++i) {
            wheel.set(timer, skein::time_point(std::chrono::microseconds(2'000'000 + i % 1000)));
            timer.cancel();
        }
    });
}
double asio_set_cancel(std::size_t n) {
    asio::io_context context(1);
    std::vector<std::unique_ptr<asio::steady_timer>> others;
    const auto now = std::chrono::steady_clock::now();
    for (std::size_t i = 0; i < 10'000; ++i) {
        others.push_back(std::make_unique<asio::steady_timer>(
            context, now + std::chrono::seconds(1000 + i * 7 % 5000)));
        others.back()->async_wait([](asio::error_code) {});
    }
    asio::steady_timer timer(context);
    const double ns = bench::cpu_ns_per(n, [&] {
        for (std::size_t i = 0; i < n; ++i) {
            timer.expires_at(now + std::chrono::seconds(2000 + i % 1000));
            timer.async_wait([](asio::error_code) {});
            timer.cancel();
            if (i % 64 == 63) context.poll(); // runs the cancelled handlers
        }
    });
    for (auto& t : others) t->cancel();
    context.poll();
    return ns;
}

} // namespace

int main() {
    constexpr int rounds = 11, awaits = 1'000'000, spawns = 1000, trips = 200'000;
    bool ok = true;
    {
        const auto [ours, theirs, call] =
            bench::in_turns<3>(rounds, {[] {
                                            return bench::cpu_ns_per(awaits, [] {
                                                bench::keep(run_skein(await_many(awaits)));
                                            });
                                        },
                                        [] {
                                            return bench::cpu_ns_per(awaits, [] {
                                                bench::keep(run_asio(asio_await_many(awaits)));
                                            });
                                        },
                                        [] {
                                            return bench::cpu_ns_per(awaits, [] {
                                                long sum = 0;
                                                for (int i = 0; i < awaits; ++i) sum += plain(i);
                                                bench::keep(sum);
                                            });
                                        }});
        ok &= bench::figure("core.await", ours.median, "ns")
                  .against("asio::awaitable", theirs.median)
                  .at_most(1.0)
                  .print();
        ok &= bench::figure("core.await_vs_call", ours.median, "ns")
                  .against("a function call", call.median)
                  .print();
    }
    {
        const auto [ours, theirs] = bench::in_turns<2>(
            rounds, {[] {
                         return bench::cpu_ns_per(
                             awaits / 4, [] { bench::keep(run_skein(await_nested(awaits / 4))); });
                     },
                     [] {
                         return bench::cpu_ns_per(awaits / 4, [] {
                             bench::keep(run_asio(asio_await_nested(awaits / 4)));
                         });
                     }});
        ok &= bench::figure("core.await_four_deep", ours.median, "ns")
                  .against("asio::awaitable", theirs.median)
                  .at_most(1.0)
                  .print();
    }
    {
        const auto [ours, theirs] = bench::in_turns<2>(
            rounds * 5,
            {[] {
                 return bench::cpu_ns_per(spawns,
                                          [] { bench::keep(run_skein(spawn_many(spawns))); });
             },
             [] {
                 return bench::cpu_ns_per(spawns, [] { bench::keep(asio_spawn_many(spawns)); });
             }});
        ok &= bench::figure("core.spawn_join", ours.median, "ns")
                  .against("asio::co_spawn", theirs.median)
                  .at_most(1.0)
                  .print();
    }
    {
        const auto [ours, theirs] =
            bench::in_turns<2>(rounds, {[] { return wheel_set_cancel(awaits / 4); },
                                        [] { return asio_set_cancel(awaits / 4); }});
        ok &= bench::figure("core.timer_set_cancel", ours.median, "ns")
                  .against("asio::steady_timer", theirs.median)
                  .at_most(1.0)
                  .print();
    }
    {
        const auto [ours, theirs] = bench::in_turns<2>(
            rounds,
            {[] {
                 return bench::cpu_ns_per(trips, [] { bench::keep(run_skein(ping_pong(trips))); });
             },
             [] {
                 return bench::cpu_ns_per(trips,
                                          [] { bench::keep(run_asio(asio_ping_pong(trips))); });
             }});
        ok &= bench::figure("core.channel_round_trip", ours.median, "ns")
                  .against("asio channel", theirs.median)
                  .at_most(1.0)
                  .print();
    }
    return ok ? 0 : 1;
}
