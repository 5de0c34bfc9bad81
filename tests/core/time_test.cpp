// SPDX-License-Identifier: Apache-2.0
#include <skein/core/time.hpp>

#include <skein/core/error.hpp>

#include <cmath>
#include <limits>

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

TEST_CASE("a time_span of any chrono duration is that duration or the nearest that there is") {
    using namespace std::chrono_literals;
    using skein::duration;
    using skein::time_span;
    STATIC_CHECK(time_span() == 0ns);
    STATIC_CHECK(time_span(2h) == 2h);
    STATIC_CHECK(time_span(std::chrono::years(290)) == std::chrono::years(290));
    STATIC_CHECK(time_span(std::chrono::years(300)) == duration::max());
    STATIC_CHECK(time_span(std::chrono::hours::max()) == duration::max());
    STATIC_CHECK(time_span(std::chrono::seconds::max()) == duration::max());
    STATIC_CHECK(time_span(std::chrono::hours::min()) == duration::min());
    STATIC_CHECK(time_span(duration::max()) == duration::max());
    STATIC_CHECK(time_span(std::chrono::duration<std::uint64_t>(UINT64_MAX)) == duration::max());
    STATIC_CHECK(time_span(std::chrono::duration<std::int64_t, std::exa>(-1)) == duration::min());
    STATIC_CHECK(time_span(std::chrono::duration<std::uint64_t, std::pico>(UINT64_MAX)) ==
                 18'446'744'073'709'551ns);
    STATIC_CHECK(time_span(1.5s) == 1500ms);
    STATIC_CHECK(time_span(1e300 * 1s) == duration::max());
    constexpr double endless = std::numeric_limits<double>::infinity();
    CHECK(time_span(std::chrono::duration<double>(endless)) == duration::max());
    CHECK(time_span(std::chrono::duration<float>(-INFINITY)) == duration::min());
    CHECK(time_span(-3s) == -3s);
}

TEST_CASE("a length of time that is no number is an error where it is given") {
    try {
        (void)skein::time_span(std::chrono::duration<double>(std::nan("")));
        FAIL("NaN became a length");
    } catch (const skein::error& e) {
        CHECK(e.code() == skein::errc::invalid_argument);
    }
}

TEST_CASE("the arithmetic of time_spans saturates") {
    using namespace std::chrono_literals;
    using skein::duration;
    using skein::time_point;
    using skein::time_span;
    constexpr time_span ever = std::chrono::hours::max();
    STATIC_CHECK(ever + ever == duration::max());
    STATIC_CHECK(ever + 5s == duration::max());
    STATIC_CHECK(5s + ever == duration::max());
    STATIC_CHECK(3 * ever == duration::max());
    STATIC_CHECK(ever * -2 == duration::min());
    STATIC_CHECK(time_span(duration::min()) - 1s == duration::min());
    STATIC_CHECK(ever - time_span(-1s) == duration::max());
    STATIC_CHECK(ever / 2 + 500ms < ever);
    STATIC_CHECK(time_span(2s) + 3ms == 2003ms);
    STATIC_CHECK(time_point(1h) + ever == time_point::max());
    STATIC_CHECK(skein::between(time_point(1s), time_point::min()) == duration::min());
    STATIC_CHECK(skein::between(time_point(1s), time_point(3s)) == 2s);
    time_span pause = 1s;
    for (int i = 0; i < 80; ++i) pause *= 2;
    CHECK(pause == duration::max());
}
