// SPDX-License-Identifier: Apache-2.0
// Makes, calls and kills detached actors, for tests that do something to a cluster meanwhile.
//
//     skein_detached make NAME START [RESTARTS] [--address A]    prints the sum
//     skein_detached add NAME N                                  adds, prints the sum
//     skein_detached wait NAME BEGUN                             a call that ends with its actor,
//                                                                or never
//     skein_detached kill NAME
//     skein_detached relay NAME N       a worker makes it or finds it, gives the handle; another
//                                       one adds through that; sum
//     skein_detached hold NAME BEGUN    as wait, by a worker
//
// All of them in the namespace "prod".

#include <skein/skein.hpp>

#include <fmt/core.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

struct detached_sum {
    int sum = 0;
    int add(int n) { return sum += n; }
    skein::task<int> wait(std::string begun) {
        std::ofstream(begun, std::ios::app) << "begun\n";
        co_await skein::sleep_for(std::chrono::hours(1));
        co_return sum;
    }
    int save() const { return sum; }
    void load(int saved) { sum = saved; }
};

// On workers.
skein::task<skein::actor_handle<detached_sum>> open_there(std::string name) {
    auto making = skein::actor<detached_sum>.with(
        {.name = name, .get_if_exists = true, .space = "prod", .detached = true})(0);
    co_return co_await making;
}
skein::task<int> add_through(skein::actor_handle<detached_sum> sum, int n) {
    auto adding = sum.call<&detached_sum::add>(n);
    co_return co_await adding;
}
skein::task<int> add_there(std::string name, int n) {
    auto looking = skein::get_actor<detached_sum>(name, {.space = "prod"});
    const auto found = co_await looking;
    auto adding = found.call<&detached_sum::add>(n);
    co_return co_await adding;
}
skein::task<int> hold_there(skein::actor_handle<detached_sum> sum, std::string begun) {
    auto waiting = sum.call<&detached_sum::wait>(begun);
    co_return co_await waiting;
}

skein::task<int> app(std::vector<std::string> a) {
    if (a.size() < 2)
        throw std::invalid_argument("usage: skein_detached make|add|wait|kill|relay|hold NAME");
    if (a[0] == "relay") {
        auto opening = skein::remote<&open_there>(a[1]);
        const auto sum = co_await opening;
        auto by_handle = skein::remote<&add_through>(sum, std::atoi(a.at(2).c_str()));
        (void)co_await by_handle;
        auto by_name = skein::remote<&add_there>(a[1], 0);
        fmt::print("the sum is {}\n", co_await by_name);
        co_return 0;
    }
    if (a[0] == "make") {
        skein::actor_options how;
        how.name = a[1];
        how.space = "prod";
        how.detached = true;
        how.restarts = a.size() > 3 ? std::atoi(a[3].c_str()) : 0;
        auto making = skein::actor<detached_sum>.with(how)(std::atoi(a.at(2).c_str()));
        const auto made = co_await making;
        auto adding = made.call<&detached_sum::add>(0);
        fmt::print("the sum is {}\n", co_await adding);
        co_return 0;
    }
    auto looking = skein::get_actor<detached_sum>(a[1], {.space = "prod"});
    const auto found = co_await looking;
    if (a[0] == "add") {
        auto adding = found.call<&detached_sum::add>(std::atoi(a.at(2).c_str()));
        fmt::print("the sum is {}\n", co_await adding);
    } else if (a[0] == "hold") {
        auto waiting = skein::remote<&hold_there>(found, a.at(2));
        fmt::print("the sum is {}\n", co_await waiting);
    } else if (a[0] == "wait") {
        auto waiting = found.call<&detached_sum::wait>(a.at(2));
        fmt::print("the sum is {}\n", co_await waiting);
    } else {
        skein::kill(found);
    }
    co_return 0;
}

int main(int argc, char** argv) { return skein::run(argc, argv, app); }
