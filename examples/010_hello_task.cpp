// SPDX-License-Identifier: Apache-2.0
// The smallest distributed program: two calls in two worker processes, awaited together.
//
//     010_hello_task [--workers N]
#include <skein/skein.hpp>

#include <fmt/core.h>

// Any function can be called in another process. No macro, no base class, no registration.
long sum_of_squares(long from, long to) {
    long sum = 0;
    for (long i = from; i < to; ++i) sum += i * i;
    return sum;
}

skein::task<int> app() {
    auto low = skein::remote<&sum_of_squares>(0, 500);     // starts now, in a worker process
    auto high = skein::remote<&sum_of_squares>(500, 1000); // at the same time, in another

    auto both = skein::all(low, high);
    auto [a, b] = co_await std::move(both);
    fmt::print("{}\n", a + b);
    co_return 0;
}

int main(int argc, char** argv) { return skein::run(argc, argv, app); }
