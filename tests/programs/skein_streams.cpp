// SPDX-License-Identifier: Apache-2.0
// Streams of a real program, for streams_test.py: it prints a line for each thing that it has seen.
//
//     skein_streams [kills]      kills: rounds of streams, while somebody kills workers
#include <skein/skein.hpp>

#include <fmt/core.h>

#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <unistd.h>

using namespace std::chrono_literals;
using skein::task;

namespace streams_program {

struct item {
    long index = 0;
    int pid = 0;
    int attempt = 1;
};

skein::generator<item> count_to(long n) {
    for (long i = 0; i < n; ++i) {
        item one;
        one.index = i;
        one.pid = ::getpid();
        co_yield one;
    }
}
/// Dies behind three items, the first time: a file in this folder says which time it is.
skein::generator<item> die_once(std::string folder) {
    const bool is_first = !std::filesystem::exists(folder + "/first");
    std::ofstream(folder + (is_first ? "/first" : "/second")) << "begun\n";
    for (long i = 0; i < 50; ++i) {
        if (is_first && i == 3) {
            co_await skein::sleep_for(20ms); // they leave
            ::kill(::getpid(), SIGKILL);
        }
        item one;
        one.index = i;
        one.attempt = is_first ? 1 : 2;
        co_yield one;
    }
}
/// Endless; a file is there until it has cleaned up.
skein::generator<item> hold(std::string file) {
    std::ofstream(file) << "held\n";
    bool is_over = false;
    try {
        for (long i = 0;; ++i) {
            item one;
            one.index = i;
            co_yield one;
        }
    } catch (const skein::error&) {
        is_over = true;
    }
    if (!is_over) co_return;
    co_await skein::sleep_for(20ms);
    std::filesystem::remove(file);
}

struct shelf {
    long from = 0;
    skein::generator<item> books(long n) const {
        for (long i = 0; i < n; ++i) {
            item one;
            one.index = from + i;
            co_yield one;
        }
    }
};
task<long> sum_of(long n) {
    auto s = skein::stream<&count_to>(n);
    long sum = 0;
    while (auto one = co_await s.next()) sum += one->index;
    co_return sum;
}
task<long> sum_of_books(skein::actor_handle<shelf> at, long n) {
    auto s = at.stream<&shelf::books>(n);
    long sum = 0;
    while (auto one = co_await s.next()) sum += one->index;
    co_return sum;
}

task<void> once(std::string folder) {
    auto all = skein::stream<&count_to>(10'000);
    long items = 0;
    while (auto one = co_await all.next())
        if (one->index != items++) fmt::print("out of order\n");
    fmt::print("{} items\n", items);

    auto of_task = skein::remote<&sum_of>(1000);
    fmt::print("a task's: {}\n", co_await of_task);
    auto shelf_at = co_await skein::actor<shelf>.with({.cpus = 1})(7L); // a process of its own
    auto of_actor = skein::remote<&sum_of_books>(shelf_at, 1000);
    fmt::print("an actor's: {}\n", co_await of_actor);
    shelf_at = {};

    auto killed = skein::stream<&count_to>(1'000'000'000);
    items = 0;
    try {
        while (auto one = co_await killed.next()) {
            if (one->index != items) fmt::print("out of order\n");
            if (++items == 100) ::kill(one->pid, SIGKILL);
        }
        fmt::print("it has ended\n");
    } catch (const skein::error& e) {
        fmt::print("killed: {}, {}\n", items >= 100 ? "what had come" : "too few",
                   skein::to_string(e.code()));
    }

    auto again = skein::stream<&die_once>(folder);
    while (!std::filesystem::exists(folder + "/second")) co_await skein::sleep_for(5ms);
    items = 0;
    int attempt = 0;
    while (auto one = co_await again.next()) {
        if (one->index != items++) fmt::print("out of order\n");
        attempt = one->attempt;
    }
    fmt::print("again: {} items of attempt {}\n", items, attempt);

    const auto file = folder + "/held";
    {
        auto dropped = skein::stream<&hold>(file);
        (void)co_await dropped.next();
    }
    while (std::filesystem::exists(file)) co_await skein::sleep_for(5ms);
    auto closed = skein::stream<&hold>(file);
    (void)co_await closed.next();
    auto closing = closed.close();
    co_await closing;
    fmt::print("ended by its reader: {}\n", std::filesystem::exists(file) ? "held" : "gone");
}

/// Gives how a stream of so many items ended; they must have come in order.
task<std::string> read_one(long n, bool by_worker) {
    if (by_worker) {
        auto r = skein::remote<&sum_of>.with({.retries = 0})(n);
        auto asked = skein::as_result(skein::as_task(r));
        const auto sum = co_await asked;
        if (sum) co_return *sum == n*(n - 1) / 2 ? "whole" : "wrong";
        co_return std::string(skein::to_string(sum.error().code()));
    }
    auto s = skein::stream<&count_to>(n);
    long items = 0;
    try {
        while (auto one = co_await s.next())
            if (one->index != items++) co_return "wrong";
    } catch (const skein::error& e) {
        co_return std::string(skein::to_string(e.code()));
    }
    co_return items == n ? "whole" : "wrong";
}
task<void> under_kills() {
    int whole = 0, lost = 0, wrong = 0;
    for (int round = 0; round < 20; ++round) {
        fmt::print("round {}\n", round);
        std::fflush(stdout);
        std::vector<task<std::string>> all;
        for (int i = 0; i < 4; ++i) all.push_back(read_one(20'000, i % 2 == 1));
        auto together = skein::all(std::move(all));
        const auto ends = co_await std::move(together);
        for (const auto& how : ends) {
            whole += how == "whole";
            lost += how == "worker_lost";
            wrong += how != "whole" && how != "worker_lost";
            if (how != "whole" && how != "worker_lost") fmt::print("{}\n", how);
        }
    }
    fmt::print("ends: {}, wrong: {}, some whole: {}\n", whole + lost, wrong, whole > 0);
}

task<int> app(std::vector<std::string> arguments) {
    if (!arguments.empty() && arguments[0] == "kills") {
        auto work = under_kills();
        co_await work;
    } else {
        auto work = once(arguments.empty() ? "." : arguments[0]);
        co_await work;
    }
    co_return 0;
}

} // namespace streams_program

int main(int argc, char** argv) { return skein::run(argc, argv, streams_program::app); }
