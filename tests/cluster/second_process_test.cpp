// SPDX-License-Identifier: Apache-2.0
// Plain children of waiting tasks on a node that has room for one worker: they run in a second
// process beside it.
#include "real_cluster.hpp"

#include <skein/core/sleep.hpp>
#include <skein/core/timeout.hpp>
#include <skein/rt/runtime_context.hpp>
#include <tests/support/sim_nodes.hpp>
#include <tests/support/temporary_folder.hpp>

#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

namespace second_process_test {

using namespace cluster_test;
using namespace std::chrono_literals;

void say_begun(const std::string& path) { std::ofstream(path + ".begun") << ::getpid(); }
task<void> until_begun(std::string path) {
    while (!std::filesystem::exists(path + ".begun")) co_await sleep_for(1ms);
}
long where_when(std::string path) {
    say_begun(path);
    while (!std::filesystem::exists(path)) ::usleep(1000);
    return ::getpid();
}
long stop_here(std::string path) {
    say_begun(path);
    ::raise(SIGSTOP);
    return ::getpid();
}

/// Waits for a child by itself, with a limit, and gives what it heard. The child ends with the
/// file, or is stopped.
task<std::string> watch(std::string how, bool is_stopped, std::string path) {
    call_options options;
    options.retries = 0;
    if (how == "deadline") options.deadline = 50ms;
    auto child = is_stopped ? remote<&stop_here>.with(options)(path)
                            : remote<&where_when>.with(options)(path);
    std::string heard;
    const auto outcome_of = [](const result<long>& got) {
        return got ? std::string("a value") : std::string(to_string(got.error().code()));
    };
    if (how == "deadline") {
        auto asked = as_result(child);
        const auto got = co_await asked;
        heard = outcome_of(got);
    } else {
        auto begun = until_begun(path); // force ends no process for what has not
        if (how == "force") co_await begun;
        auto asked = as_result(with_timeout(child, 50ms));
        const auto got = co_await asked;
        heard = outcome_of(got);
        if (how == "force") {
            child.cancel_by_force();
            auto ended = as_result(child);
            const auto outcome = co_await ended;
            heard += ", " + outcome_of(outcome);
        }
    }
    std::ofstream(path) << "go";
    co_return heard;
}

TEST_CASE(
    "on a node with one cpu a task hears of its child's limits, and force ends the child alone",
    "[C9][C10][C14][cluster][second_process]") {
    const test::temporary_folder folder;
    real_cluster c(1, {});
    c.run([&folder](real_cluster& self) -> task<void> {
        auto limit = remote<&watch>("timeout", false, folder / "a");
        const auto limit_came = co_await limit;
        CHECK(limit_came == "timeout");
        auto deadline = remote<&watch>("deadline", false, folder / "b");
        const auto deadline_came = co_await deadline;
        CHECK(deadline_came == "timeout");
        CHECK(self.driver.stats().workers_lost == 0);
        auto force = remote<&watch>("force", false, folder / "c");
        const auto force_came = co_await force;
        CHECK(force_came == "timeout, cancelled");
        CHECK(self.driver.stats().workers_lost == 1); // that of the child alone
        auto again = remote<&watch>("timeout", false, folder / "d");
        const auto again_came = co_await again;
        CHECK(again_came == "timeout");
        CHECK(self.driver.workers() == 1);
        CHECK(self.agent.workers() == 2);
    });
}

TEST_CASE("on a node with one cpu a task hears of the limits of a child that is stopped",
          "[C9][C14][cluster][second_process]") {
    const test::temporary_folder folder;
    time_constants times;
    times.dead_after = 600s; // nobody else ends it
    times.shutdown_grace = 100ms;
    real_cluster c(1, times);
    c.run([&folder](real_cluster& self) -> task<void> {
        auto force = remote<&watch>("force", true, folder / "a");
        const auto force_came = co_await force;
        CHECK(force_came == "timeout, cancelled");
        CHECK(self.driver.stats().workers_lost == 1);
        auto deadline = remote<&watch>("deadline", true, folder / "b");
        const auto deadline_came = co_await deadline;
        CHECK(deadline_came == "timeout");
        CHECK(self.driver.stats().workers_lost == 1);
    });
}

// ---- in simulated worlds ------------------------------------------------------------------------

std::int64_t pid_here() { return runtime_context().pid; }
task<std::pair<std::int64_t, std::int64_t>> parent_and_child() {
    auto child = remote<&pid_here>();
    const auto there = co_await child;
    co_return std::pair(runtime_context().pid, there);
}
task<void> check_two_processes(bool differ = true) {
    auto asked = remote<&parent_and_child>();
    const auto [parent, child] = co_await asked;
    CHECK((parent != child) == differ);
}

TEST_CASE("a second process takes no cpus of its node, and leaves after ten idle seconds",
          "[W7][cluster][second_process]") {
    test::in_cluster(
        1, 1,
        [](test::sim_nodes& c, test::sim_nodes::driver& d) -> task<void> {
            auto twice = check_two_processes();
            co_await twice;
            CHECK(c.processes() == 2);
            CHECK(d.self.workers() == 1);
            CHECK(c.head().status().nodes.at(0).used == "cpu=1");
            co_await sleep_for(8s);
            CHECK(c.processes() == 2);
            co_await sleep_for(5s);
            CHECK(c.processes() == 1);
            auto again = check_two_processes();
            co_await again;
            CHECK(c.processes() == 2);
        },
        1);
}

TEST_CASE("a second process outlives its head, and another head grants one",
          "[F12][cluster][second_process]") {
    test::in_cluster(
        2, 1,
        [](test::sim_nodes& c, test::sim_nodes::driver& d) -> task<void> {
            auto twice = check_two_processes();
            co_await twice;
            auto killed = c.kill_head();
            co_await killed;
            co_await sleep_for(1s);
            c.start_head();
            co_await sleep_for(5s);
            CHECK(c.processes() == 2);
            CHECK(c.head().status().nodes.at(0).workers == 2);
            co_await sleep_for(10s);
            CHECK(c.processes() == 1);
            auto again = check_two_processes();
            co_await again;
            CHECK(c.processes() == 2);
            CHECK(d.self.stats().workers_lost == 1); // the one that had nothing to do
        },
        1);
}

TEST_CASE("a second process leaves with its worker", "[W7][cluster][second_process]") {
    test::in_cluster(
        3, 1,
        [](test::sim_nodes& c, test::sim_nodes::driver& d) -> task<void> {
            auto before = check_two_processes();
            co_await before;
            const auto first = c.at(0).children->running();
            REQUIRE(first.size() == 2);
            c.at(0).children->kill(first.front().pid);
            auto after = check_two_processes();
            co_await after;
            co_await sleep_for(1s);
            CHECK(c.processes() == 2);
            for (const auto& one : c.at(0).children->running()) CHECK(one.pid > first.back().pid);
            CHECK(d.self.workers() == 1);
        },
        1);
}

} // namespace second_process_test
