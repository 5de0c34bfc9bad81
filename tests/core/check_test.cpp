// SPDX-License-Identifier: Apache-2.0
#include <skein/core/check.hpp>

#include <catch2/catch_test_macros.hpp>

#include <csignal>
#include <string>

#include <sys/wait.h>
#include <unistd.h>

TEST_CASE("a check that holds does nothing and evaluates once") {
    int evaluated = 0;
    SKEIN_CHECK(++evaluated == 1, "never printed {}", evaluated);
    CHECK(evaluated == 1);
}

TEST_CASE("a check that fails ends the program with place and values") {
    int ends[2];
    REQUIRE(::pipe(ends) == 0);
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        ::dup2(ends[1], STDERR_FILENO);
        std::signal(SIGABRT, SIG_DFL); // the test program's own handler would report it
        const int rank = 3;
        SKEIN_CHECK(rank < 2, "rank {} >= world size {}", rank, 2);
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
    CHECK(WIFSIGNALED(status));
    CHECK(WTERMSIG(status) == SIGABRT);
    CHECK(said.find("rank < 2: rank 3 >= world size 2") != std::string::npos);
    CHECK(said.find("check_test.cpp") != std::string::npos);
}
