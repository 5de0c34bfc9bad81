// SPDX-License-Identifier: Apache-2.0
// A handle is passed around: three tasks count, and the driver watches the counter rise.
//
//     022_watched_counter --workers 4
#include <skein/skein.hpp>

#include <fmt/core.h>

#include <chrono>
#include <cstdio>
#include <thread>
#include <vector>

using namespace std::chrono_literals;
using skein::task;

// [watched]
struct counter {
    int value = 0;
    void increment() { ++value; }
    int get() const { return value; }
};

// A plain function: it never waits for skein, and what it calls leaves all the same.
void count_slowly(skein::actor_handle<counter> to) {
    for (int i = 0; i < 10; ++i) {
        std::this_thread::sleep_for(100ms);
        to.call<&counter::increment>();
    }
}

task<int> app() {
    auto shared = co_await skein::actor<counter>();
    std::vector<skein::ref<void>> all;
    for (int i = 0; i < 3; ++i) all.push_back(skein::remote<&count_slowly>(shared));

    for (int seen = 0; seen < 30;) {
        co_await skein::sleep_for(100ms);
        auto asked = shared.call<&counter::get>();
        seen = co_await asked;
        fmt::print("{} ", seen);
        std::fflush(stdout);
    }
    fmt::print("\n");
    for (auto& one : all) co_await one;
    co_return 0;
}
// [/watched]

int main(int argc, char** argv) { return skein::run(argc, argv, app); }
