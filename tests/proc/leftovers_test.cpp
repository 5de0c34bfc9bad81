// SPDX-License-Identifier: Apache-2.0
#include <skein/proc/leftovers.hpp>
#include <skein/proc/process.hpp>

#include <cerrno>

#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch_test_macros.hpp>

using namespace skein;

namespace {

/// Waits for the end of a child, and leaves it to others to reap it.
void see_end(pid_t pid) {
    ::siginfo_t seen{};
    REQUIRE(::waitid(P_PID, static_cast<::id_t>(pid), &seen, WEXITED | WNOWAIT) == 0);
}
pid_t start_child() {
    const pid_t pid = ::fork();
    if (pid == 0) ::_exit(0);
    return pid;
}

} // namespace

TEST_CASE("a child that nobody waits for is reaped when it is seen a second time") {
    proc::leftovers all;
    (void)all.look(); // of other tests
    (void)all.look();
    CHECK(all.look() == 0);
    const auto first = start_child();
    see_end(first);
    CHECK(all.look() == 0);
    const auto second = start_child();
    see_end(second);
    CHECK(all.look() == 1);
    CHECK(::waitpid(first, nullptr, 0) == -1);
    CHECK(errno == ECHILD);
    CHECK(::waitpid(second, nullptr, WNOHANG) == second); // by who waits for it in time
    CHECK(all.look() == 0);
}

TEST_CASE("what a child_process holds is never reaped by others, and hides nobody") {
    proc::leftovers all;
    (void)all.look(); // of other tests
    (void)all.look();
    proc::process_options how;
    how.argv = {"/bin/sh", "-c", "exit 3"};
    auto child = proc::child_process::spawn(how);
    see_end(child.pid());
    const auto forgotten = start_child();
    see_end(forgotten);
    CHECK(all.look() == 0);
    CHECK(all.look() == 1);
    CHECK(all.look() == 0);
    CHECK(::waitpid(forgotten, nullptr, 0) == -1);
    CHECK(child.wait_blocking().code() == 3);
}
