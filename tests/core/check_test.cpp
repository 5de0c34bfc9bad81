// SPDX-License-Identifier: Apache-2.0
#include <skein/core/check.hpp>

#include <catch2/catch_test_macros.hpp>

#include <string>

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
