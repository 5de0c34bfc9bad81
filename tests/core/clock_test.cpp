// SPDX-License-Identifier: Apache-2.0
#include <skein/core/clock.hpp>

#include <catch2/catch_test_macros.hpp>

TEST_CASE("the system's clock does not go back and knows what year it is not") {
    skein::system_clock clock;
    const auto before = clock.now();
    CHECK(clock.now() >= before);
    CHECK(clock.wall() > std::chrono::hours(24) * 365 * 50);
}

TEST_CASE("a manual clock stands still until it is moved") {
    skein::manual_clock clock;
    const auto now = clock.now();
    const auto wall = clock.wall();
    CHECK(clock.now() == now);
    clock.advance(std::chrono::seconds(2));
    CHECK(clock.now() - now == std::chrono::seconds(2));
    CHECK(clock.wall() - wall == std::chrono::seconds(2));
}
