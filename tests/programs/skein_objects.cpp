// SPDX-License-Identifier: Apache-2.0
// What objects cost and survive, on real processes:
//   skein_objects idle | drop N | kills N | full N | long_calls | from_plain
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
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <sys/stat.h>
#include <sys/types.h>

#include <fmt/core.h>

namespace objects_program {

using namespace std::chrono_literals;
using numbers = std::vector<std::uint32_t>;

numbers make(std::size_t bytes, std::uint32_t with) {
    return numbers(bytes / sizeof(std::uint32_t), with);
}
std::uint64_t total(std::span<const std::uint32_t> all) {
    std::uint64_t sum = 0;
    for (const auto one : all) sum += one;
    return sum;
}
std::uint64_t add(skein::view<numbers> of) { return total(*of); }
int die() { return std::raise(SIGKILL); }
int nothing(int n) { return n; }

int threads_of_store() {
    int found = 0;
    for (const auto& one : std::filesystem::directory_iterator("/proc/self/task")) {
        std::string name;
        std::getline(std::ifstream(one.path() / "comm"), name);
        found += name == "skein-objects";
    }
    return found;
}

/// MiB that the memory of objects has now.
std::int64_t store_mebibytes() {
    for (const auto& one : std::filesystem::directory_iterator("/proc/self/fd")) {
        std::error_code none;
        const auto what = std::filesystem::read_symlink(one.path(), none).string();
        struct stat info{};
        if (what.find("skein-objects") != what.npos && ::stat(one.path().c_str(), &info) == 0)
            return info.st_blocks / 2048;
    }
    return -1;
}

skein::task<void> idle() {
    const auto small = skein::remote<&nothing>(1);
    (void)co_await small;
    fmt::print("threads {} MiB {}\n", threads_of_store(), store_mebibytes());
    auto putting = skein::put(make(1 << 20, 1));
    const auto one = co_await putting;
    fmt::print("threads {} MiB {}\n", threads_of_store(), store_mebibytes());
}

skein::task<void> drop(int n) {
    for (int i = 0; i < n; i += 10) {
        std::vector<skein::ref<numbers>> ten;
        for (int k = 0; k < 10; ++k) ten.push_back(skein::remote<&make>(1 << 20, 1));
        for (const auto& one : ten) {
            auto looking = skein::view(one);
            const auto seen = co_await looking;
            if (total(*seen) != (1 << 18)) fmt::print("a wrong sum\n");
        }
    }
    const auto most = store_mebibytes();
    std::int64_t now = most;
    for (int i = 0; i < 150 && (now = store_mebibytes()) > 0; ++i) co_await skein::sleep_for(100ms);
    fmt::print("at most {} then {}\n", most <= 64 ? "few" : std::to_string(most), now);
}

skein::task<void> kills(int n) {
    auto putting = skein::put(make(8 << 20, 3));
    const auto shared = co_await putting;
    std::uint64_t sum = 0;
    for (int round = 0; round < n; ++round) {
        std::vector<skein::ref<std::uint64_t>> sums;
        for (int i = 0; i < 6; ++i) {
            const auto made = skein::remote<&make>.with({.retries = 20})(1 << 20, 1);
            sums.push_back(skein::remote<&add>.with({.retries = 20})(made));
            sums.push_back(skein::remote<&add>.with({.retries = 20})(shared));
        }
        auto killed = skein::as_result(skein::remote<&die>.with({.retries = 0})());
        (void)co_await killed;
        for (const auto& one : sums) sum += co_await one;
    }
    const std::uint64_t each = 6 * ((1 << 18) + std::uint64_t{3} * (8 << 18));
    fmt::print("{}\n", sum == each * static_cast<std::uint64_t>(n) ? "right" : "wrong");
}

skein::task<void> full(int n) {
    std::vector<skein::ref<numbers>> held;
    for (int i = 0; i < n; ++i) held.push_back(skein::remote<&make>(8 << 20, 1));
    std::uint64_t sum = 0;
    int inside = 0;
    for (const auto& one : held) {
        auto looking = skein::view(one);
        const auto seen = co_await looking;
        sum += total(*seen);
        inside += seen.object() != nullptr;
    }
    fmt::print("{} of {} in the store\n", inside, n);
    fmt::print("{}\n", sum == std::uint64_t(n) * (8 << 18) ? "right" : "wrong");
}

/// Waits for a file, keeping its process to itself; false: it does not come.
bool see(const std::string& path) {
    const auto until = std::chrono::steady_clock::now() + 20s;
    while (!std::filesystem::exists(path)) {
        if (std::chrono::steady_clock::now() > until) return false;
        std::this_thread::sleep_for(1ms);
    }
    return true;
}
void say(const std::string& path) { std::ofstream(path) << "here\n"; }

struct slow {
    /// Ends when the caller has said so, which knows of the one before by its result.
    numbers make(std::string path, int number) {
        const auto name = path + std::to_string(number);
        if (!see(name + ".go")) throw std::runtime_error(name + " was not let go");
        std::this_thread::sleep_for(20ms); // longer than calls run in a row
        return numbers(1 << 18, std::uint32_t(number));
    }
};

/// Plain calls that end one after the other, each when the result of the one before is there.
skein::task<void> long_calls() {
    const std::string path = "long-call-";
    auto making = skein::actor<slow>();
    const auto to = co_await making;
    say(path + "9.go"); // the store begins
    auto warming = to.call<&slow::make>(path, 9);
    (void)co_await warming;
    std::vector<skein::ref<numbers>> all;
    for (int i = 0; i < 4; ++i) all.push_back(to.call<&slow::make>(path, i));
    for (int i = 0; i < 4; ++i) {
        say(path + std::to_string(i) + ".go");
        auto looking = skein::view(all[std::size_t(i)]);
        const auto seen = co_await looking;
        fmt::print("{} of {}\n", (*seen).front(), (*seen).size());
    }
}

void note(numbers all, std::string path) { say(path + std::to_string(all.size())); }
/// Calls with a large argument, and waits for that to run while it keeps its own process.
bool call_from_here(std::string path) {
    const auto noting = skein::remote<&note>(numbers(25'000, 1), path);
    return see(path + std::to_string(25'000));
}
skein::task<void> from_plain() {
    const auto calling = skein::remote<&call_from_here>(std::string("noted-"));
    const bool is_seen = co_await calling;
    fmt::print("{}\n", is_seen ? "it ran meanwhile" : "it waited");
}

skein::task<int> app(std::vector<std::string> arguments) {
    const auto what = arguments.empty() ? std::string() : arguments[0];
    const int n = arguments.size() > 1 ? std::atoi(arguments[1].c_str()) : 1;
    auto work = what == "idle"         ? idle()
                : what == "drop"       ? drop(n)
                : what == "kills"      ? kills(n)
                : what == "long_calls" ? long_calls()
                : what == "from_plain" ? from_plain()
                                       : full(n);
    co_await work;
    co_return 0;
}

} // namespace objects_program

int main(int argc, char** argv) { return skein::run(argc, argv, objects_program::app); }
