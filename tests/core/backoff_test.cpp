// SPDX-License-Identifier: Apache-2.0
#include <skein/core/backoff.hpp>
#include <skein/core/random.hpp>

#include <catch2/catch_test_macros.hpp>

#include <chrono>
#include <cstdint>
#include <limits>
#include <set>

using namespace skein;
using namespace std::chrono_literals;

TEST_CASE("pauses double up to the longest, and begin anew when it has come through",
          "[core][backoff]") {
    backoff pauses(50ms, 300ms);
    CHECK(pauses.next() == 50ms);
    CHECK(pauses.next() == 100ms);
    CHECK(pauses.next() == 200ms);
    CHECK(pauses.next() == 300ms);
    CHECK(pauses.next() == 300ms);
    pauses.reset();
    CHECK(pauses.next() == 50ms);
}

TEST_CASE("the pause behind a count of failures is the one that the count's tries would have had",
          "[core][backoff]") {
    for (const int factor : {1, 2, 3}) {
        backoff pauses(70ms, 5s, factor);
        for (int failures = 1; failures < 20; ++failures)
            CHECK(pause_after(failures, 70ms, 5s, factor) == pauses.next());
    }
    CHECK(pause_after(0, 70ms, 5s) == 70ms);
    CHECK(pause_after(-3, 70ms, 5s) == 70ms);
}

TEST_CASE("a pause never overflows, nor passes the longest", "[core][backoff]") {
    constexpr auto most = std::numeric_limits<std::int64_t>::max();
    CHECK(pause_after(most, 1ms, 10s) == 10s);
    CHECK(pause_after(most, 0ms, 10s) == 0ms);
    CHECK(pause_after(most, 1ns, duration(most)) == duration(most));
    CHECK(pause_after(1, 1min, 10s) == 10s);
    CHECK(backoff(1min, 10s).next() == 10s);
    CHECK(pause_after(most, 7s, 10s, 1) == 7s);
}

TEST_CASE("pauses of many who wait for one thing differ, by up to half", "[core][backoff]") {
    seeded_random random(7);
    std::set<std::int64_t> seen;
    for (int i = 0; i < 100; ++i) {
        backoff pauses(50ms, 3200ms);
        (void)pauses.next();
        const auto pause = pauses.next(random);
        CHECK(pause > 50ms);
        CHECK(pause <= 100ms);
        seen.insert(pause.count());
        CHECK(pauses.next() == 200ms); // what was cut off does not count
    }
    CHECK(seen.size() > 50);
    backoff none(0ms, 0ms);
    CHECK(none.next(random) == 0ms);
}
