// SPDX-License-Identifier: Apache-2.0
#include <skein/core/config.hpp>

#include <catch2/catch_test_macros.hpp>

#include <string>

TEST_CASE("the version is said in the same way three times") {
    CHECK(std::string(SKEIN_VERSION_STRING) == std::to_string(SKEIN_VERSION_MAJOR) + "." +
                                                   std::to_string(SKEIN_VERSION_MINOR) + "." +
                                                   std::to_string(SKEIN_VERSION_PATCH));
}
