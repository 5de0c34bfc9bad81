// SPDX-License-Identifier: Apache-2.0
// Workers whose processes are there and do nothing any more: stopped, another program, or in a read
// of our own socket.
#include <tests/apps/apps.hpp>
#include <tests/apps/local_pool.hpp>
#include <tests/support/temporary_folder.hpp>

#include <skein/core/timeout.hpp>
#include <skein/proc/detail/boot_message.hpp>
#include <skein/program/local_workers.hpp>
#include <skein/rt/actor.hpp>
#include <skein/rt/runtime.hpp>

#include <array>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

#include <catch2/catch_test_macros.hpp>

namespace silent_worker_test {

using namespace skein;
using namespace rt_test;
using namespace std::chrono_literals;

/// The first time it takes its process away, the second time it gives its pid.
long fall_silent(std::string how, std::string marker) {
    if (std::filesystem::exists(marker)) return ::getpid();
    std::ofstream(marker) << ::getpid();
    if (how == "stops") ::raise(SIGSTOP);
    if (how == "is another program") ::execlp("sleep", "sleep", "600", nullptr);
    constexpr int ours = proc::detail::socket_file;
    ::fcntl(ours, F_SETFL, ::fcntl(ours, F_GETFL) & ~O_NONBLOCK);
    std::array<char, 64> bytes{};
    while (::read(ours, bytes.data(), bytes.size()) > 0) {}
    return -1;
}

program::local_workers_options impatient(int count) {
    auto how = options(count);
    how.times.suspect_after = 30ms;
    how.times.dead_after = 90ms;
    return how;
}

task<void> until_written(std::string path) {
    while (!std::filesystem::exists(path) || std::filesystem::file_size(path) == 0)
        co_await sleep_for(1ms);
}

void check_that_all_goes_on(const std::string& how, int workers) {
    const test::temporary_folder folder;
    pool p(impatient(workers));
    p.run([&](pool& self) -> task<void> {
        const auto marker = folder / "marker";
        auto silent = remote<&fall_silent>(how, marker);
        auto begun = until_written(marker);
        co_await begun;
        std::vector<ref<int>> behind;
        for (int i = 0; i < 8; ++i) behind.push_back(remote<&twice>(i));
        for (int i = 0; i < 8; ++i) {
            auto& one = behind[static_cast<std::size_t>(i)];
            const auto one_came = co_await one;
            CHECK(one_came == 2 * i);
        }
        auto asked = with_timeout(silent, 60s);
        const long pid = co_await asked;
        CHECK(pid > 0);
        CHECK(self.driver.stats().workers_lost == 1);
    });
}

TEST_CASE("a worker that is stopped is suspected, and what it had runs elsewhere",
          "[F8][rt][silent_worker]") {
    check_that_all_goes_on("stops", 2);
    check_that_all_goes_on("stops", 1);
}

TEST_CASE("a worker that has become another program is given up", "[F8][rt][silent_worker]") {
    check_that_all_goes_on("is another program", 2);
}

TEST_CASE("a worker in a read of skein's own socket is given up", "[F8][rt][silent_worker]") {
    check_that_all_goes_on("reads", 2);
}

TEST_CASE("a call of an actor on a stopped worker says what became of it",
          "[F4][rt][silent_worker]") {
    pool p(impatient(1));
    p.run([](pool&) -> task<void> {
        auto actor = co_await skein::actor<counter>();
        auto asked = actor.call<&counter::pid>();
        const long pid = co_await asked;
        ::kill(static_cast<pid_t>(pid), SIGSTOP);
        auto call = actor.call<&counter::add>(1);
        auto outcome = as_result(with_timeout(call, 60s));
        const auto got = co_await outcome;
        REQUIRE_FALSE(got);
        INFO(got.error().what());
        CHECK(got.error().code() == errc::worker_lost);
        CHECK(got.error().text().find("it is stopped (SIGSTOP)") != std::string::npos);
    });
}

/// Nobody is given up for its silence, and nobody is waited for at the end.
program::local_workers_options patient(int count) {
    auto how = options(count);
    how.times.dead_after = 600s;
    how.times.shutdown_grace = 100ms;
    return how;
}

TEST_CASE("the deadline of a call on a stopped worker passes", "[C9][rt][silent_worker]") {
    const test::temporary_folder folder;
    pool p(patient(1));
    p.run([&folder](pool&) -> task<void> {
        auto first = remote<&twice>(1); // the deadline counts from the call
        co_await first;
        auto silent = remote<&fall_silent>.with({.deadline = 200ms})("stops", folder / "marker");
        auto asked = as_result(with_timeout(silent, 60s));
        const auto got = co_await asked;
        REQUIRE_FALSE(got);
        INFO(got.error().what());
        CHECK(got.error().code() == errc::timeout);
        CHECK(got.error().text().find("gave no answer within 0.2 s") != std::string::npos);
    });
}

TEST_CASE("force ends a stopped worker, and another one comes", "[C14][rt][silent_worker]") {
    const test::temporary_folder folder;
    pool p(patient(1));
    p.run([&folder](pool& self) -> task<void> {
        const auto marker = folder / "marker";
        auto silent = remote<&fall_silent>("stops", marker);
        auto begun = until_written(marker);
        co_await begun;
        silent.cancel_by_force();
        auto asked = as_result(with_timeout(silent, 60s));
        const auto got = co_await asked;
        REQUIRE_FALSE(got);
        CHECK(got.error().code() == errc::cancelled);
        auto after = with_timeout(remote<&twice>(4), 60s);
        const int eight = co_await after;
        CHECK(eight == 8);
        CHECK(self.driver.stats().workers_lost == 1);
    });
}

TEST_CASE("a worker that goes on in time keeps what it runs, and gets tasks again",
          "[F8][rt][silent_worker]") {
    const test::temporary_folder folder;
    auto how = impatient(1);
    how.times.dead_after = 600s;
    pool p(how);
    p.run([&folder](pool& self) -> task<void> {
        const auto path = folder / "go";
        auto asked = remote<&where>();
        const long pid = co_await asked;
        ::kill(static_cast<pid_t>(pid), SIGSTOP);
        auto behind = remote<&twice>(4);
        co_await sleep_for(150ms); // it is suspected meanwhile
        ::kill(static_cast<pid_t>(pid), SIGCONT);
        const auto behind_came = co_await behind;
        CHECK(behind_came == 8);
        auto again = remote<&where>();
        const auto again_came = co_await again;
        CHECK(again_came == pid);
        CHECK(self.driver.stats().workers_lost == 0);
    });
}

TEST_CASE("a worker that computes, or waits for a file of its own, is no silent one",
          "[F8][rt][silent_worker]") {
    const test::temporary_folder folder;
    auto how = impatient(1);
    how.times.suspect_after = 5ms;
    how.times.dead_after = 15ms;
    pool p(how);
    p.run([](pool& self) -> task<void> {
        auto busy = remote<&spend>(300);
        co_await busy;
        CHECK(self.driver.stats().workers_lost == 0);
    });
}

} // namespace silent_worker_test
