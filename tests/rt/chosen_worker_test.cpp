// SPDX-License-Identifier: Apache-2.0
// Which worker a task goes to, and what others feel of a plain function that runs: who waits, or
// lives, in a process is not held up by it while there is another process to be had; and what a
// plain function sends leaves while it runs.
#include <tests/apps/apps.hpp>
#include <tests/apps/local_pool.hpp>
#include <tests/support/temporary_folder.hpp>

#include <skein/core/timeout.hpp>
#include <skein/program/local_workers.hpp>
#include <skein/rt/actor.hpp>
#include <skein/rt/runtime.hpp>
#include <skein/rt/wait_refs.hpp>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include <catch2/catch_test_macros.hpp>

namespace chosen_worker_test {

using namespace skein;
using namespace rt_test;
using namespace std::chrono_literals;

long where_when(std::string path) {
    wait_for_file(path);
    return ::getpid();
}

/// Waits for a child by itself, which ends when this one says so; gives what it heard, and whether
/// both shared a process.
task<std::string> watch(std::string how, std::string path) {
    call_options options;
    options.retries = 0;
    if (how == "deadline") options.deadline = 50ms;
    auto child = remote<&where_when>.with(options)(path);
    std::string heard;
    if (how == "deadline") {
        auto asked = as_result(child);
        const auto got = co_await asked;
        heard = got ? "a value" : std::string(to_string(got.error().code()));
    } else {
        auto asked = as_result(with_timeout(child, 50ms));
        const auto got = co_await asked;
        heard = got ? "a value" : std::string(to_string(got.error().code()));
        if (how == "force") {
            child.cancel_by_force();
            auto ended = as_result(child);
            const auto outcome = co_await ended;
            heard += outcome ? ", a value" : ", " + std::string(to_string(outcome.error().code()));
        }
    }
    std::ofstream(path) << "go";
    co_return heard;
}

/// Waits for a child with a limit, which is not the child's.
task<std::pair<std::size_t, std::size_t>> wait_for_one(std::string path) {
    std::vector<ref<long>> children;
    children.push_back(remote<&where_when>(path));
    auto some = skein::wait(children, 1, 50ms);
    const auto seen = co_await std::move(some);
    std::ofstream(path) << "go";
    co_return std::pair(seen.done.size(), seen.pending.size());
}

/// A task that waits for one of its own, and hears of time meanwhile.
task<std::pair<long, long>> parent_and_child(std::string path) {
    auto child = remote<&where_when>(path);
    co_await sleep_for(1ms);
    std::ofstream(path) << "go";
    const long there = co_await child;
    co_return std::pair(static_cast<long>(::getpid()), there);
}

task<std::string> hear_of_death() {
    auto child = remote<&die>.with({.retries = 1})();
    auto asked = as_result(child);
    const auto got = co_await asked;
    co_return got ? "a value" : std::string(to_string(got.error().code()));
}

task<void> idle_until(std::string path) {
    while (!std::filesystem::exists(path)) co_await sleep_for(1ms);
}

void add_and_go_on(actor_handle<counter> to, int times, std::string path) {
    for (int i = 0; i < times; ++i) to.call<&counter::add>(1);
    wait_for_file(path);
}

/// Calls from plain and from coroutine methods, which take different ways.
struct writer {
    actor_handle<journal> to;
    void take(actor_handle<journal> it) { to = std::move(it); }
    void write(int first, int n) {
        for (int i = first; i < first + n; ++i) to.call<&journal::note>(i);
    }
    task<void> write_and_wait(int first, int n) {
        for (int i = first; i < first + n; ++i) {
            auto noted = to.call<&journal::note>(i);
            co_await noted;
        }
    }
};

TEST_CASE("a task goes to a worker with nothing to do, not to one on which an actor lives",
          "[rt][chosen_worker]") {
    const test::temporary_folder folder;
    pool p(options(3));
    p.run([&folder](pool&) -> task<void> {
        auto actor = co_await skein::actor<counter>();
        auto asked = actor.call<&counter::pid>();
        const long its = co_await asked;
        for (int round = 0; round < 4; ++round) {
            auto one = remote<&where>();
            const long there = co_await one;
            CHECK(there != its);
            const auto path = folder / std::to_string(round);
            std::filesystem::create_directory(path);
            auto a = remote<&meet_in>(path);
            auto b = remote<&meet_in>(path);
            const auto a_came = co_await a;
            CHECK(a_came != its);
            const auto b_came = co_await b;
            CHECK(b_came != its);
        }
    });
}

TEST_CASE("a task goes to another worker than its parent, which waits for it",
          "[rt][chosen_worker]") {
    const test::temporary_folder folder;
    pool p(options(2));
    p.run([&folder](pool& self) -> task<void> {
        for (int round = 0; round < 4; ++round) {
            auto asked = remote<&parent_and_child>(folder / std::to_string(round));
            const auto [parent, child] = co_await asked;
            CHECK(parent != child);
        }
        CHECK(self.workers.pids().size() == 2); // nobody else was needed
    });
}

TEST_CASE("with one worker a task hears of its child's limits all the same",
          "[C9][C10][C14][rt][chosen_worker]") {
    const test::temporary_folder folder;
    pool p(options(1));
    p.run([&folder](pool& self) -> task<void> {
        auto limit = remote<&watch>("timeout", folder / "a");
        const auto limit_came = co_await limit;
        CHECK(limit_came == "timeout");
        auto deadline = remote<&watch>("deadline", folder / "b");
        const auto deadline_came = co_await deadline;
        CHECK(deadline_came == "timeout");
        CHECK(self.driver.stats().workers_lost == 0);
        auto force = remote<&watch>("force", folder / "c");
        const auto force_came = co_await force;
        CHECK(force_came == "timeout, cancelled");
        CHECK(self.driver.stats().workers_lost == 1); // that of the child alone
        auto again = remote<&watch>("timeout", folder / "d");
        const auto again_came = co_await again;
        CHECK(again_came == "timeout");
    });
}

TEST_CASE("wait in a task of the only worker ends with its time", "[C12][rt][chosen_worker]") {
    const test::temporary_folder folder;
    pool p(options(1));
    p.run([&folder](pool&) -> task<void> {
        auto asked = remote<&wait_for_one>(folder / "go");
        const auto [done, pending] = co_await asked;
        CHECK(done == 0);
        CHECK(pending == 1);
    });
}

TEST_CASE("a worker with a second process runs as many tasks at a time as it has cores",
          "[W7][rt][chosen_worker]") {
    pool p(options(1));
    p.run([](pool& self) -> task<void> {
        std::vector<ref<int>> all;
        for (int i = 0; i < 40; ++i) all.push_back(remote<&nested>(i));
        for (int i = 0; i < 40; ++i) {
            auto& one = all[static_cast<std::size_t>(i)];
            const auto one_came = co_await one;
            CHECK(one_came == 2 * i + 1);
        }
        CHECK(self.workers.pids().size() <= 2);
        CHECK(self.driver.workers() == 1);
    });
}

TEST_CASE("a child that kills its second process runs again in another one, and its parent goes on",
          "[F2][rt][chosen_worker]") {
    const test::temporary_folder folder;
    pool p(options(1));
    p.run([](pool& self) -> task<void> {
        auto asked = remote<&hear_of_death>.with({.retries = 0})();
        const auto asked_came = co_await asked;
        CHECK(asked_came == "worker_lost");
        CHECK(self.driver.stats().workers_lost == 2);
        auto after = remote<&twice>(4);
        const auto after_came = co_await after;
        CHECK(after_came == 8);
    });
}

TEST_CASE("a coroutine that waits for its timers is not held up while a worker has nothing to do",
          "[rt][chosen_worker]") {
    const test::temporary_folder folder;
    pool p(options(2));
    p.run([&folder](pool&) -> task<void> {
        auto pulse = remote<&idle_until>.with({.cpus = 0})(folder / "over");
        auto child = remote<&where_when>(folder / "over");
        std::ofstream(folder / "over") << "go";
        co_await child;
        co_await pulse;
    });
}

TEST_CASE("what a plain function calls leaves while it runs", "[rt][chosen_worker]") {
    const test::temporary_folder folder;
    pool p(options(2));
    p.run([&folder](pool&) -> task<void> {
        auto actor = co_await skein::actor<counter>();
        auto adds = remote<&add_and_go_on>(actor, 3, folder / "seen");
        for (int seen = 0; seen < 3;) {
            auto asked = with_timeout(actor.call<&counter::get>(), 20s);
            seen = co_await asked;
            CHECK_FALSE(adds.ready());
        }
        std::ofstream(folder / "seen") << "go";
        co_await adds;
    });
}

TEST_CASE("calls of plain and of coroutine methods arrive in the order in which they were made",
          "[M2][rt][chosen_worker]") {
    pool p(options(2));
    p.run([](pool&) -> task<void> {
        auto to = co_await skein::actor<journal>();
        auto from = co_await skein::actor<writer>();
        from.call<&writer::take>(to);
        constexpr int n = 20;
        for (int i = 0; i < 6; ++i) {
            if (i % 3 != 2) {
                from.call<&writer::write>(i * n, n);
            } else {
                auto wrote = from.call<&writer::write_and_wait>(i * n, n);
                co_await wrote;
            }
        }
        auto asked = to.call<&journal::all>();
        const auto all = co_await asked;
        REQUIRE(all.size() == 6 * n);
        for (int i = 0; i < 6 * n; ++i) CHECK(all[static_cast<std::size_t>(i)] == i);
    });
}

} // namespace chosen_worker_test
