// SPDX-License-Identifier: Apache-2.0
#include <skein/core/this_process.hpp>

#include <catch2/catch_test_macros.hpp>

#include <string>

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
