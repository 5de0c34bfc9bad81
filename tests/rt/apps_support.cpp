// SPDX-License-Identifier: Apache-2.0
#include <tests/rt/apps.hpp>

#include <cstdio>
#include <map>

namespace rt_test {
namespace {

/// Prints its pid and those of its workers, then waits for ever.
skein::task<int> print_pids_and_wait() {
    std::vector<skein::ref<long>> pids;
    auto a = co_await skein::actor<counter>(0);
    auto b = co_await skein::actor<counter>(0);
    auto first = a.call<&counter::pid>();
    auto second = b.call<&counter::pid>();
    const long p = co_await first, q = co_await second;
    fmt::print("{} {} {}\n", ::getpid(), p, q);
    std::fflush(stdout);
    co_await skein::sleep_for(std::chrono::hours(1));
    co_return 0;
}

skein::task<void> hello() {
    auto r = skein::remote<&twice>(21);
    const int x = co_await r;
    fmt::print("{}\n", x);
}

skein::task<int> exit_with_seven() { co_return 7; }

skein::task<int> uncaught() {
    auto r = skein::remote<&fail_with_text>("the text");
    co_return co_await r;
}

skein::task<int> with_arguments(std::vector<std::string> rest) {
    for (auto& a : rest) fmt::print("[{}]", a);
    fmt::print("\n");
    co_return 0;
}

/// Its workers are another program: this one's copy with bytes appended is the same build, /bin/true is none.
skein::task<int> needs_worker() {
    auto r = skein::remote<&twice>(1);
    co_return co_await r;
}

} // namespace

int run_app(const std::string& name, int argc, char** argv) {
    if (name == "wait") return skein::run(argc, argv, print_pids_and_wait);
    if (name == "hello") return skein::run(argc, argv, hello);
    if (name == "seven") return skein::run(argc, argv, exit_with_seven);
    if (name == "uncaught") return skein::run(argc, argv, uncaught);
    if (name == "arguments") return skein::run(argc, argv, with_arguments);
    if (name == "foreign") {
        skein::run_options how;
        how.processes.executable = std::getenv("SKEIN_TEST_EXE");
        return skein::run(argc, argv, needs_worker, how);
    }
    fmt::print(stderr, "no test app {}\n", name);
    return 99;
}

} // namespace rt_test
