// SPDX-License-Identifier: Apache-2.0
// Workers of a node whose processes are there and do nothing any more: stopped, or another program.
#include "real_cluster.hpp"

#include <skein/core/sleep.hpp>
#include <skein/core/timeout.hpp>
#include <tests/support/temporary_folder.hpp>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace silent_workers_test {

using namespace cluster_test;
using namespace std::chrono_literals;

int twice(int x) { return 2 * x; }

/// The first time it takes its process away, the second time it gives its pid.
long fall_silent(std::string how, std::string marker) {
    if (std::filesystem::exists(marker)) return ::getpid();
    std::ofstream(marker) << ::getpid();
    if (how == "stops") ::raise(SIGSTOP);
    if (how == "is another program") ::execlp("sleep", "sleep", "600", nullptr);
    return -1;
}

time_constants impatient() {
    time_constants times;
    times.suspect_after = 30ms;
    times.dead_after = 90ms;
    return times;
}
/// Nobody is given up for its silence, and nobody is waited for at the end.
time_constants patient() {
    time_constants times;
    times.dead_after = 600s;
    times.shutdown_grace = 100ms;
    return times;
}

task<void> until_written(std::string path) {
    while (!std::filesystem::exists(path) || std::filesystem::file_size(path) == 0)
        co_await sleep_for(1ms);
}

void check_that_all_goes_on(const std::string& how, int cpus) {
    const test::temporary_folder folder;
    real_cluster c(cpus, impatient());
    c.run([&](real_cluster& self) -> task<void> {
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

TEST_CASE("a worker of a node that is stopped is ended, and what it had runs elsewhere",
          "[F8][cluster][silent_worker]") {
    check_that_all_goes_on("stops", 2);
    check_that_all_goes_on("stops", 1);
}

TEST_CASE("a worker of a node that has become another program is ended",
          "[F8][cluster][silent_worker]") {
    check_that_all_goes_on("is another program", 2);
    check_that_all_goes_on("is another program", 1);
}

TEST_CASE("a call that may not run again says why its worker was ended",
          "[F2][cluster][silent_worker]") {
    const test::temporary_folder folder;
    real_cluster c(1, impatient());
    c.run([&folder](real_cluster&) -> task<void> {
        auto silent = remote<&fall_silent>.with({.retries = 0})("stops", folder / "marker");
        auto asked = as_result(with_timeout(silent, 60s));
        const auto got = co_await asked;
        REQUIRE_FALSE(got);
        INFO(got.error().what());
        CHECK(got.error().code() == errc::worker_lost);
        const std::string text = got.error().what();
        CHECK(text.find("it is stopped (SIGSTOP): killed by signal 9") != std::string::npos);
        CHECK(text.find(" on a") != std::string::npos);
    });
}

TEST_CASE("the deadline of a call on a stopped worker of a node passes",
          "[C9][cluster][silent_worker]") {
    const test::temporary_folder folder;
    real_cluster c(1, patient());
    c.run([&folder](real_cluster&) -> task<void> {
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

TEST_CASE("force ends a stopped worker of a node, and another one comes",
          "[C14][cluster][silent_worker]") {
    const test::temporary_folder folder;
    real_cluster c(1, patient());
    c.run([&folder](real_cluster& self) -> task<void> {
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

} // namespace silent_workers_test
