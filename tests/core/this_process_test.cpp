// SPDX-License-Identifier: Apache-2.0
#include <skein/core/this_process.hpp>

#include <catch2/catch_test_macros.hpp>

#include <string>

#include <sys/wait.h>
#include <unistd.h>

TEST_CASE("the arguments of this process are found, the program first") {
    const auto argv = skein::own_arguments();
    REQUIRE_FALSE(argv.empty());
    CHECK(argv[0].find("tests") != std::string::npos);
}

TEST_CASE("the boot id is one line and stays the same") {
    const auto id = skein::boot_id();
    CHECK(id == skein::boot_id());
    CHECK(id.find('\n') == std::string::npos);
    CHECK_FALSE(id.empty());
}

TEST_CASE("a file that is not there has nothing in it") {
    CHECK(skein::read_small_file("/nonexistent/file").empty());
}

TEST_CASE("the folder of the start is known, wherever the process goes") {
    const auto& home = skein::folder_at_start();
    CHECK(home.starts_with('/'));
    CHECK_FALSE(skein::has_left_start_folder());
    const pid_t child = ::fork();
    if (child == 0) {
        const auto before = home;
        const bool left = ::chdir("/proc") == 0 && skein::has_left_start_folder();
        const bool back = ::chdir(before.c_str()) == 0 && !skein::has_left_start_folder();
        ::_exit(left && back && skein::folder_at_start() == before ? 0 : 1);
    }
    int raw = 0;
    REQUIRE(::waitpid(child, &raw, 0) == child);
    CHECK(WIFEXITED(raw));
    CHECK(WEXITSTATUS(raw) == 0);
}
