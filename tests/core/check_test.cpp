// SPDX-License-Identifier: Apache-2.0
#include <skein/core/check.hpp>

#include <catch2/catch_test_macros.hpp>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include <sys/wait.h>

#include "../support/death.hpp"

TEST_CASE("a check that holds does nothing and evaluates once") {
    int evaluated = 0;
    SKEIN_CHECK(++evaluated == 1, "never printed {}", evaluated);
    CHECK(evaluated == 1);
}

TEST_CASE("a check that fails ends the program with place and values") {
    const auto said = skein_test::abort_text([] {
        const int rank = 3;
        SKEIN_CHECK(rank < 2, "rank {} >= world size {}", rank, 2);
    });
    CHECK(said.find("rank < 2: rank 3 >= world size 2") != std::string::npos);
    CHECK(said.find("check_test.cpp") != std::string::npos);
}

namespace {

void asserts() { CHECK(true); }

} // namespace

TEST_CASE("what must not be", "[.second thread]") {
    if (std::getenv("SKEIN_TEST_SECOND_THREAD") == nullptr) return; // it was asked for by its file
    std::thread elsewhere(asserts); // by name: scripts/check threads reads calls
    elsewhere.join();
}

TEST_CASE("an assertion on a second thread ends a test program, with the test and the line") {
    auto* const child =
        ::popen("SKEIN_TEST_SECOND_THREAD=1 /proc/$PPID/exe '[.second thread]' 2>&1", "r");
    REQUIRE(child != nullptr);
    std::string said;
    for (int c = 0; (c = std::fgetc(child)) != EOF;) said += static_cast<char>(c);
    const int status = ::pclose(child);
    INFO(said);
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 70);
    CHECK(said.find("check_test.cpp:") != std::string::npos);
    CHECK(said.find("an assertion on a second thread, in \"what must not be\"") !=
          std::string::npos);
}
