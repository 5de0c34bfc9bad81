// SPDX-License-Identifier: Apache-2.0
// Many calls at once: all of them, the first of them, each as it ends.
//
//     050_many_tasks [--workers N]
// [functions]
#include <skein/skein.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <vector>

using namespace std::chrono_literals;

long cube(long n) {
    if (n == 13) throw std::invalid_argument("13 is unlucky");
    return n * n * n;
}

// A coroutine waits without holding its worker: other calls run there meanwhile.
skein::task<int> answer_after(int ms) {
    co_await skein::sleep_for(std::chrono::milliseconds(ms));
    co_return ms;
}
// [/functions]

// [all]
skein::task<void> wait_for_all() {
    std::vector<skein::ref<long>> cubes;
    for (long n = 0; n < 10; ++n) cubes.push_back(skein::remote<&cube>(n)); // all run from now on

    auto together = skein::all(std::move(cubes));
    long sum = 0;
    for (long c : co_await std::move(together)) sum += c;
    fmt::print("the sum of ten cubes is {}\n", sum);
}
// [/all]

// [as_completed]
skein::task<void> each_as_it_ends() {
    std::vector<skein::ref<long>> cubes;
    for (long n = 10; n < 20; ++n) cubes.push_back(skein::remote<&cube>(n));

    auto ends = skein::as_completed(std::move(cubes));
    int good = 0;
    while (true) {
        auto next = ends.next();
        auto done = co_await std::move(next);
        if (!done) break; // all have ended
        if (done->value) {
            ++good;
        } else { // an outcome is a value or an error; nothing is thrown
            fmt::print("the call for {} failed\n", 10 + done->index);
        }
    }
    fmt::print("{} succeeded\n", good);
}
// [/as_completed]

// [window]
// A window: eight calls are on their way at any time, whatever the number of inputs.
skein::task<long> in_a_window(std::vector<long> inputs) {
    skein::semaphore free_places(8);
    skein::scope calls;
    long sum = 0;
    for (long n : inputs) {
        co_await free_places.acquire();
        calls.spawn([](long number, skein::semaphore* places, long* total) -> skein::task<void> {
            auto call = skein::remote<&cube>(number);
            *total += co_await call;
            places->release();
        }(n, &free_places, &sum));
    }
    auto ended = calls.join();
    co_await std::move(ended);
    co_return sum;
}
// [/window]

// [race]
skein::task<void> whoever_is_first() {
    // Calls that only wait: they occupy no core, and are sent at once.
    auto slow = skein::remote<&answer_after>.with({.cpus = 0})(60'000);
    auto fast = skein::remote<&answer_after>.with({.cpus = 0})(1);
    auto either = skein::race(slow, fast);
    const auto won = co_await std::move(either);
    slow.cancel(); // race() stopped waiting for it; this stops the call itself
    fmt::print("number {} was first\n", won.index);
}
// [/race]

// [app]
skein::task<int> app() {
    auto first = wait_for_all();
    co_await std::move(first);
    auto second = each_as_it_ends();
    co_await std::move(second);
    auto third = in_a_window(std::vector<long>(100, 2));
    fmt::print("a window over a hundred calls: {}\n", co_await std::move(third));
    auto fourth = whoever_is_first();
    co_await std::move(fourth);
    co_return 0;
}

int main(int argc, char** argv) { return skein::run(argc, argv, app); }
// [/app]
