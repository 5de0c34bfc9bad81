// SPDX-License-Identifier: Apache-2.0
#include <skein/core/unique_fd.hpp>
#include <skein/proc/boot.hpp>
#include <skein/proc/process.hpp>

#include <string_view>

#include <fcntl.h>
#include <unistd.h>

#include <catch2/catch_test_macros.hpp>

using namespace skein;

TEST_CASE("a process that nobody started as a child has no role", "[rt][boot]") {
    CHECK_FALSE(proc::started_as("worker"));
    CHECK_FALSE(proc::started_as(""));
    CHECK_FALSE(proc::take_boot("worker"));
}

TEST_CASE("a boot message that is nonsense is refused", "[rt][boot]") {
    proc::process_options how;
    how.executable = "/proc/self/exe";
    how.argv = {"rt_tests"};
    auto [in, out] = make_pipe();
    REQUIRE(::write(out.get(), "hello", 5) == 5);
    out.reset();
    how.fds.emplace_back(in.get(), 3);
    how.env.emplace_back(proc::boot_variable, "3");
    auto child = proc::child_process::spawn(how);
    CHECK(child.wait_blocking().code() == 1);
    CHECK(child.last_words().find("boot message") != std::string::npos);
}

TEST_CASE("a script in between that has a file of its own there starts no child of ours",
          "[rt][boot]") {
    proc::process_options how;
    how.executable = "/proc/self/exe";
    how.argv = {"proc_tests", "--list-tags"};
    auto [in, out] = make_pipe();
    out.reset();
    const unique_fd nothing(::open("/dev/null", O_WRONLY | O_CLOEXEC));
    how.fds.emplace_back(in.get(), 3);
    how.fds.emplace_back(nothing.get(), 1);
    how.env.emplace_back(proc::boot_variable, "3:1");
    auto child = proc::child_process::spawn(how);
    CHECK(child.wait_blocking().success());
}
