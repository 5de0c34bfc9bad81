// SPDX-License-Identifier: Apache-2.0
// Calls that no node of a cluster can take, and many that only wait for their turn.
//
//     skein_unmet [--address A]
//
// Prints "done" when the others have ended; the first ones never do.

#include <skein/skein.hpp>

#include <fmt/core.h>

#include <cstdio>
#include <utility>
#include <vector>

#include <unistd.h>

int wait_a_moment() {
    ::usleep(20'000);
    return 1;
}

skein::task<int> app() {
    auto ssd = skein::remote<&wait_a_moment>.with({.resources = "ssd=1"})();
    auto as_much = skein::remote<&wait_a_moment>.with({.resources = "ssd=1"})();
    auto there = skein::remote<&wait_a_moment>.with({.on = skein::node_named("nobody")})();
    std::vector<skein::ref<int>> others;
    for (int i = 0; i < 20; ++i) others.push_back(skein::remote<&wait_a_moment>());
    auto all = skein::all(std::move(others));
    (void)co_await std::move(all);
    fmt::print("done\n");
    std::fflush(stdout);
    (void)co_await ssd;
    co_return 1;
}

int main(int argc, char** argv) { return skein::run(argc, argv, app); }
