// SPDX-License-Identifier: Apache-2.0
#include <skein/net/limits.hpp>

#include <catch2/catch_test_macros.hpp>

#include <type_traits>

using namespace skein;

TEST_CASE("limits may stand in an awaited expression") {
    CHECK(std::is_trivially_destructible_v<net::limits>);
    CHECK(std::is_trivially_destructible_v<net::keep_alive>);
}
