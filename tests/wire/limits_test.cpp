// SPDX-License-Identifier: Apache-2.0
#include <skein/wire/limits.hpp>

#include <catch2/catch_test_macros.hpp>

TEST_CASE("by default only the input bounds the number of elements, and depth is bounded") {
    const skein::wire::limits standard;
    CHECK(standard.max_elements == static_cast<std::size_t>(-1));
    CHECK(standard.max_depth == 64);
    CHECK(standard.max_memory == std::size_t{1} << 30);
}
