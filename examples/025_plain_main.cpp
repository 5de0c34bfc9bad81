// SPDX-License-Identifier: Apache-2.0
// A program whose main is no coroutine: any thread calls, and waits for what it needs.
//
//     025_plain_main [--workers N]
// [calls]
#include <skein/skein.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

using namespace std::chrono_literals;

int square(int x) { return x * x; }
int sum(int a, int b) { return a + b; }

struct counter {
    int n = 0;
    int add(int k) { return n += k; }
    int divide_by(int k) {
        if (k == 0) throw std::invalid_argument("division by zero");
        return n /= k;
    }
};

void call(skein::session& cluster) {
    auto a = cluster.submit<&square>(7); // returns at once
    auto b = cluster.submit<&square>(8);
    auto c = cluster.submit<&sum>(a, b);                     // a pending stands for its value
    fmt::print("{} + {} = {}\n", a.get(), b.get(), c.get()); // get() blocks this thread

    auto bounded = skein::remote<&square>.with({.deadline = 10s, .name = "nine"}).on(cluster)(9);
    fmt::print("{}\n", bounded.get());
}
// [/calls]

// [threads]
void share(skein::session& cluster) {
    auto c = cluster.actor<counter>(10); // blocks until the actor is there
    std::vector<std::thread> threads;
    for (int t = 1; t <= 3; ++t)
        threads.emplace_back([c, t] { // a handle of its own
            for (int i = 0; i < 100; ++i) c.call<&counter::add>(t);
        });
    for (auto& t : threads) t.join();
    fmt::print("{}\n", c.call<&counter::add>(0).get());

    try {
        c.call<&counter::divide_by>(0).get();
    } catch (const skein::remote_error& e) { // on this thread
        fmt::print("{} said: {}\n", e.remote_type(), e.remote_text());
    }
}
// [/threads]

// [run]
skein::task<int> largest(int n) {
    std::vector<skein::ref<int>> squares;
    for (int i = 0; i < n; ++i) squares.push_back(skein::remote<&square>(i));
    int most = 0;
    for (auto& r : squares) most = std::max(most, co_await r);
    co_return most;
}

int main(int argc, char** argv) try {
    skein::session cluster(argc, argv); // in a worker it does not return
    call(cluster);
    share(cluster);
    fmt::print("{}\n", cluster.run(largest(20))); // a coroutine on the driver's loop
    return 0;
} catch (const skein::error& e) {
    fmt::print(stderr, "error: {}\n", e.what());
    return e.code() == skein::errc::usage ? 2 : 1;
}
// [/run]
