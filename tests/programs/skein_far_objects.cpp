// SPDX-License-Identifier: Apache-2.0
// Objects on a cluster of the nodes n1 and n2: skein_far_objects share | pass | inside | lost | speed
#include <skein/core/awaitable.hpp>
#include <skein/core/sleep.hpp>
#include <skein/program/run.hpp>
#include <skein/rt/actor.hpp>
#include <skein/rt/put.hpp>
#include <skein/rt/remote.hpp>
#include <skein/rt/view.hpp>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include <unistd.h>

#include <fmt/core.h>

namespace far_objects_program {

using namespace std::chrono_literals;
using numbers = std::vector<std::uint32_t>;

constexpr std::size_t large = std::size_t{64} << 20;

numbers make(std::size_t bytes, std::uint32_t with) {
    return numbers(bytes / sizeof(std::uint32_t), with);
}
std::uint64_t add(skein::view<numbers> of) {
    std::uint64_t sum = 0;
    for (const auto one : *of) sum += one;
    return sum;
}
/// Gives back the refs that it got and one of its own.
skein::task<std::vector<skein::ref<numbers>>> pass(std::vector<skein::ref<numbers>> all) {
    auto putting = skein::put(make(large / 8, 5));
    all.push_back(co_await putting);
    co_return all;
}
std::uint64_t look(skein::view<numbers> of) { return (*of).size(); }
int parent() { return ::getppid(); }

struct keeper {
    skein::view<numbers> kept;
    void keep(skein::view<numbers> one) { kept = std::move(one); }
    std::uint64_t total() const { return add(kept); }
};

constexpr auto n1 = skein::node_named("n1"), n2 = skein::node_named("n2");

const char* judge(bool good) { return good ? "right" : "wrong"; }

/// What the driver puts is read by two tasks on each node.
skein::task<void> share() {
    auto putting = skein::put(make(large, 3));
    const auto stored = co_await putting;
    std::vector<skein::ref<std::uint64_t>> sums;
    for (int i = 0; i < 2; ++i) {
        sums.push_back(skein::remote<&add>.with({.on = n1})(stored));
        sums.push_back(skein::remote<&add>.with({.on = n2})(stored));
    }
    bool good = true;
    for (const auto& one : sums) good = co_await one == 3 * large / 4 && good;
    fmt::print("{}\n", judge(good));
}

/// What a task of one node makes a task of the other one takes, and the driver views.
skein::task<void> pass_on() {
    const auto made = skein::remote<&make>.with({.on = n1})(large, 2);
    const auto sum = skein::remote<&add>.with({.on = n2})(made);
    fmt::print("{}\n", judge(co_await sum == 2 * large / 4));
    auto looking = skein::view(made);
    const auto seen = co_await looking;
    fmt::print("{} {}\n", (*seen).size() * 4 == large ? "whole" : "cut",
               seen.object() != nullptr ? "in the store" : "in memory");
}

/// Refs within arguments and results, kept by an actor when everybody else has let go.
skein::task<void> inside() {
    auto putting = skein::put(make(large / 8, 7));
    std::vector<skein::ref<numbers>> all;
    all.push_back(co_await putting);
    const auto given = skein::remote<&pass>.with({.on = n1})(all);
    auto back = co_await given;
    bool good = back.size() == 2;
    for (const auto& one : back) {
        const auto sum = skein::remote<&add>.with({.on = n2})(one);
        const auto seen = co_await sum;
        good = good && (seen == 7 * large / 32 || seen == 5 * large / 32);
    }
    auto making = skein::actor<keeper>.with({.on = n2})();
    const auto keeps = co_await making;
    const auto kept = keeps.call<&keeper::keep>(back.back());
    co_await kept;
    back.clear();
    all.clear();
    co_await skein::sleep_for(200ms);
    const auto total = keeps.call<&keeper::total>();
    good = good && co_await total == 5 * large / 32;
    fmt::print("{}\n", judge(good));
}

/// The node that has an object is gone: it is said, and what others have of it can be read.
skein::task<void> lost() {
    const auto agent = skein::remote<&parent>.with({.on = n1})();
    const auto node = co_await agent;
    const auto read = skein::remote<&make>.with({.on = n1})(large / 8, 4);
    const auto unread = skein::remote<&make>.with({.on = n1})(large / 8, 6);
    auto making = skein::actor<keeper>.with({.on = n2})();
    const auto keeps = co_await making;
    const auto kept = keeps.call<&keeper::keep>(read);
    co_await kept;
    auto looking = skein::view(unread);
    (void)co_await looking;
    fmt::print("ready\n");
    std::fflush(stdout);
    ::kill(node, SIGKILL);
    co_await skein::sleep_for(500ms);
    const auto total = keeps.call<&keeper::total>();
    fmt::print("{}\n", judge(co_await total == 4 * large / 32));
    auto asking = skein::as_result(skein::remote<&add>.with({.on = n2})(unread));
    const auto sum = co_await asking;
    if (sum)
        fmt::print("{}\n", judge(*sum == 6 * large / 32));
    else
        fmt::print("{}\n", to_string(sum.error().code()));
    if (!sum) fmt::print(stderr, "why: {}\n", sum.error().what());
}

/// MB/s between the driver and a node, of 1 GiB.
skein::task<void> speed() {
    constexpr std::size_t whole = std::size_t{1} << 30;
    auto putting = skein::put(make(whole, 1));
    const auto stored = co_await putting;
    const auto first = skein::remote<&parent>.with({.on = n1})();
    (void)co_await first;
    for (int i = 0; i < 4; ++i) {
        const auto begin = std::chrono::steady_clock::now();
        const auto sum = skein::remote<&look>.with({.on = n1})(stored);
        (void)co_await sum;
        const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
        fmt::print("{:.0f} MB/s\n", double(whole) / 1e6 / took.count());
        co_await skein::sleep_for(100ms);
    }
}

skein::task<int> app(std::vector<std::string> arguments) {
    const auto what = arguments.empty() ? std::string() : arguments[0];
    auto work = what == "share"    ? share()
                : what == "pass"   ? pass_on()
                : what == "inside" ? inside()
                : what == "lost"   ? lost()
                                   : speed();
    co_await work;
    co_return 0;
}

} // namespace far_objects_program

int main(int argc, char** argv) { return skein::run(argc, argv, far_objects_program::app); }
