// SPDX-License-Identifier: Apache-2.0
#include <skein/core/time.hpp>

#include <catch2/catch_test_macros.hpp>

TEST_CASE("durations are nanoseconds and print as seconds") {
    using namespace std::chrono_literals;
    STATIC_CHECK(skein::duration(1us).count() == 1000);
    CHECK(skein::to_seconds(1500ms) == 1.5);
    const skein::time_point start{};
    CHECK((start + 2s) - start == 2s);
}
