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

TEST_CASE("a time beyond the end of time is the end of time") {
    using skein::deadline_after;
    using skein::time_point;
    const time_point now(std::chrono::hours(1));
    STATIC_CHECK(deadline_after(time_point(), std::chrono::seconds(1)) ==
                 time_point(std::chrono::seconds(1)));
    CHECK(deadline_after(now, skein::duration::max()) == time_point::max());
    CHECK(deadline_after(time_point(skein::duration(-2)), skein::duration::min()) ==
          time_point::min());
    CHECK(deadline_after(now, -std::chrono::hours(1)) == time_point());
}
