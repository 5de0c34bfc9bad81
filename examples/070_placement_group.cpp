// SPDX-License-Identifier: Apache-2.0
// What tasks and actors ask for, and room for several of them that is taken together.
//
//     070_placement_group --workers 2
// [includes]
#include <skein/skein.hpp>

#include <fmt/core.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <unistd.h>

using skein::task;
// [/includes]

// [demands]
constexpr std::uint64_t some_memory = 64 << 20; // bytes: counted, not enforced

double sum_of_roots(int from, int to) {
    double sum = 0;
    for (int i = from; i < to; ++i) sum += std::sqrt(i);
    return sum;
}
long process() { return ::getpid(); }

task<void> tasks_ask() {
    std::vector<skein::ref<double>> parts;
    for (int i = 0; i < 4; ++i) // two at a time on one core
        parts.push_back(
            skein::remote<&sum_of_roots>.with({.cpus = 0.5})(i * 1000, i * 1000 + 1000));
    double sum = 0;
    for (const auto& part : parts) sum += co_await part;
    fmt::print("{:.0f}\n", sum);

    // Memory, gpus or custom resources: a worker is started that holds just this.
    auto common = skein::remote<&process>();
    auto own = skein::remote<&process>.with({.memory = some_memory})();
    const long one = co_await common, other = co_await own;
    fmt::print("a worker of its own: {}\n", one != other);
}
// [/demands]

// [actor]
struct table {
    std::vector<double> rows;
    int add(double row) {
        rows.push_back(row);
        return static_cast<int>(rows.size());
    }
    long process() const { return ::getpid(); }
};

task<void> actors_hold() {
    // Its process is its own from its first call to its end; made again, it holds the same.
    auto held = co_await skein::actor<table>.with({.memory = some_memory, .restarts = 1})();
    auto with_others = co_await skein::actor<table>();
    auto first = held.call<&table::process>();
    auto second = with_others.call<&table::process>();
    const long one = co_await first, other = co_await second;
    fmt::print("a process of its own: {}\n", one != other);
}
// [/actor]

// [group]
double produce(int i) { return i * 0.5; }

task<void> together() {
    // Room for both, or for neither. It is asked for at once; what is put into it waits for it.
    skein::placement_group group({"cpu=1", "cpu=1,memory=64MiB"}, skein::group_strategy::spread);
    co_await group.ready();

    auto rows = co_await skein::actor<table>.with(
        {.cpus = 1, .memory = some_memory, .on = group.bundle(1)})();
    int count = 0;
    for (int i = 0; i < 3; ++i) {
        auto row = skein::remote<&produce>.with({.on = group.bundle(0)})(i);
        auto added = rows.call<&table::add>(row);
        count = co_await added;
    }
    fmt::print("{} rows\n", count);

    // What does not fit into its bundle is refused at once, and does not wait.
    auto large =
        skein::remote<&produce>.with({.cpus = 2, .on = group.bundle(0), .name = "large"})(7);
    auto outcome = skein::as_result(skein::as_task(large));
    const auto refused = co_await std::move(outcome);
    if (!refused) fmt::print("{}\n", refused.error().text());

    rows = {};
    co_await group.remove(); // or with the last handle, and what is still in it
}
// [/group]

// [app]
task<int> app() {
    auto first = tasks_ask();
    co_await std::move(first);
    auto second = actors_hold();
    co_await std::move(second);
    auto third = together();
    co_await std::move(third);
    co_return 0;
}

int main(int argc, char** argv) { return skein::run(argc, argv, app); }
// [/app]
