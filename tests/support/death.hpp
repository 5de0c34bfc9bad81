// SPDX-License-Identifier: Apache-2.0
#pragma once
// Runs something that must end the program, in a child process, and gives what it said.

#include <catch2/catch_test_macros.hpp>

#include <csignal>
#include <string>

#include <sys/wait.h>
#include <unistd.h>

namespace skein_test {

/// What f() printed to standard error before it aborted; fails the test if it did not abort.
template <class F>
std::string abort_text(F f) {
    int ends[2];
    REQUIRE(::pipe(ends) == 0);
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        ::dup2(ends[1], STDERR_FILENO);
        std::signal(SIGABRT, SIG_DFL); // the test program's own handler would report it
        f();
        ::_exit(0);
    }
    ::close(ends[1]);
    std::string said;
    char part[256];
    for (ssize_t n = 0; (n = ::read(ends[0], part, sizeof part)) > 0;)
        said.append(part, static_cast<std::size_t>(n));
    ::close(ends[0]);
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    INFO(said);
    CHECK(WIFSIGNALED(status));
    return said;
}

} // namespace skein_test
