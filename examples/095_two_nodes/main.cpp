// SPDX-License-Identifier: Apache-2.0
// Shows on which nodes of a cluster tasks run. start.sh beside it makes a cluster of two nodes on this host.
//
//     095_two_nodes [NODES] [--address HEAD]      calls tasks until so many nodes (1) have run some
// [task]
#include <skein/skein.hpp>

#include <fmt/core.h>

#include <charconv>
#include <chrono>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

// A worker has the environment of the `skein join` that started it: a good place for what differs between nodes.
std::string where_am_i() {
    const char* const node = std::getenv("NODE");
    return node != nullptr ? node : "this host";
}

// Holds its cpu for a moment, so that the next task goes elsewhere.
skein::task<std::string> work_somewhere() {
    co_await skein::sleep_for(std::chrono::milliseconds(20));
    co_return where_am_i();
}
// [/task]

// [app]
skein::task<int> app(std::vector<std::string> args) {
    std::size_t wanted = 1;
    if (!args.empty()) {
        const auto [end, bad] =
            std::from_chars(args[0].data(), args[0].data() + args[0].size(), wanted);
        if (bad != std::errc() || *end != '\0')
            throw skein::error(skein::errc::usage, args[0] + ": not a number of nodes");
    }
    std::map<std::string, int> tasks; // by node
    do {                              // a node's workers may still be starting
        std::vector<skein::ref<std::string>> calls;
        for (int i = 0; i < 10; ++i) calls.push_back(skein::remote<&work_somewhere>());
        auto together = skein::all(std::move(calls));
        for (const auto& node : co_await std::move(together)) ++tasks[node];
    } while (tasks.size() < wanted);
    for (const auto& [node, n] : tasks) fmt::print("{} ran {} tasks\n", node, n);
    co_return 0;
}

int main(int argc, char** argv) { return skein::run(argc, argv, app); }
// [/app]
