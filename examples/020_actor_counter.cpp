// SPDX-License-Identifier: Apache-2.0
// An actor: an object that lives in a worker process and is called through a handle.
//
//     020_actor_counter [--workers N]
// [class]
#include <skein/skein.hpp>

#include <fmt/core.h>

#include <chrono>
#include <stdexcept>
#include <string>

// Any class can be an actor. Its calls run one after the other, in the order in which they were made.
struct counter {
    std::string name;
    int n = 0;

    int add(int k) { return n += k; }
    int get() const { return n; }
    int divide_by(int k) {
        if (k == 0) throw std::invalid_argument("division by zero");
        return n /= k;
    }
    // A coroutine method suspends without blocking the actor: other calls run meanwhile.
    skein::task<std::string> report_at(int wanted) {
        while (n != wanted) co_await skein::sleep_for(std::chrono::milliseconds(1));
        co_return fmt::format("{} is at {}", name, n);
    }
};
// [/class]

// [calls]
int twice(int x) { return 2 * x; }

skein::task<int> app() {
    auto c = co_await skein::actor<counter>("apples", 10); // constructor (or field) values

    auto report = c.call<&counter::report_at>(40); // starts first, ends last
    auto a = c.call<&counter::add>(5);             // returns a ref at once: 15
    auto b = skein::remote<&twice>(a);             // a ref stands for its value: 30, on any worker
    auto sum = c.call<&counter::add>(b); // waits for b; later calls wait their turn behind it
    c.call<&counter::add>(-5);           // for its effect alone; a failure would be logged
    auto now = c.call<&counter::get>();
    fmt::print("{} {} {} {}\n", co_await a, co_await b, co_await sum, co_await now);
    fmt::print("{}\n", co_await report);

    // [/calls]
    // [errors]
    // An exception comes back with its type, its text and the place where it was thrown.
    try {
        co_await c.call<&counter::divide_by>(0);
    } catch (const skein::remote_error& e) {
        fmt::print("{} said: {}\n", e.remote_type(), e.remote_text());
    }
    co_return 0;
} // the last handle goes: the actor ends

int main(int argc, char** argv) { return skein::run(argc, argv, app); }
// [/errors]
