// SPDX-License-Identifier: Apache-2.0
#include <skein/data/desk.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <vector>

#include <catch2/catch_test_macros.hpp>

using namespace skein;
using data::desk;
using namespace std::chrono_literals;

namespace {
time_point at(std::chrono::milliseconds t) { return time_point(duration(t)); }
} // namespace

TEST_CASE("ranges cover a batch once, in order") {
    desk work;
    const auto me = work.join(desk::place::here);
    work.open(1, 10);
    std::set<std::uint64_t> rows;
    while (auto range = work.take(me, at(0ms))) {
        for (std::uint64_t i = 0; i < range->count; ++i)
            CHECK(rows.insert(range->first + i).second);
        const bool was_last = work.finish(me, range->id, 1ms);
        CHECK(was_last == (rows.size() == 10));
    }
    CHECK(rows.size() == 10);
    CHECK(work.is_done(1));
    CHECK(work.rows_left() == 0);
    work.close(1);
    CHECK_FALSE(work.is_done(1));
}

TEST_CASE("a range is as long as its executor makes in the time of one") {
    desk work;
    const auto me = work.join(desk::place::here);
    work.open(1, 1000);
    const auto first = work.take(me, at(0ms));
    REQUIRE(first);
    CHECK(first->count == 1); // nobody knows how long a row takes
    work.finish(me, first->id, 1ms);
    const auto second = work.take(me, at(0ms));
    REQUIRE(second);
    CHECK(second->count == 4);
    work.limit(me, 2);
    const auto third = work.take(me, at(0ms));
    REQUIRE(third);
    CHECK(third->count == 2);
}

TEST_CASE(
    "a helper's range is given again when it is overdue or lost, and the first result counts") {
    desk work;
    const auto here = work.join(desk::place::here), there = work.join(desk::place::there);
    work.open(1, 1);
    const auto slow = work.take(there, at(0ms));
    REQUIRE(slow);
    CHECK_FALSE(work.take(here, at(50ms)));
    REQUIRE(work.next_deadline());
    CHECK(*work.next_deadline() == at(100ms));
    const auto again = work.take(here, at(100ms));
    REQUIRE(again);
    CHECK(again->first == slow->first);
    CHECK(work.given_again() == 1);
    CHECK_FALSE(work.begin_write(there, slow->id)); // a thread writes it already
    CHECK(work.finish(here, again->id, 1ms));
    CHECK_FALSE(work.begin_write(there, slow->id));
    CHECK(work.dropped() == 2);

    work.open(2, 1);
    const auto lost = work.take(there, at(200ms));
    REQUIRE(lost);
    work.leave(there);
    const auto mine = work.take(here, at(200ms));
    REQUIRE(mine);
    CHECK_FALSE(work.begin_write(there, lost->id));
    CHECK(work.finish(here, mine->id, 1ms));
}

TEST_CASE("a helper's range is waited for no longer than a second and what its rows take here") {
    desk work;
    const auto there = work.join(desk::place::there), here = work.join(desk::place::here);
    work.open(1, 2);
    const auto mine = work.take(here, at(0ms));
    const auto first = work.take(there, at(0ms));
    REQUIRE(mine);
    REQUIRE(first);
    work.finish(here, mine->id, 50ms);
    REQUIRE(work.begin_write(there, first->id));
    work.finish(there, first->id, 5000ms); // it stood still
    work.open(2, 2);
    REQUIRE(work.take(there, at(6000ms)));
    CHECK(work.next_deadline() == at(7050ms));
    REQUIRE(work.take(there, at(6500ms))); // the second row: it has a second of its own
    CHECK(work.take(here, at(7050ms)));
    CHECK(work.next_deadline() == at(7550ms));
    CHECK(work.take(here, at(7550ms)));
    CHECK(work.given_again() == 2);
}

TEST_CASE("helpers that fall silent one after the other share one wait") {
    desk work;
    const auto here = work.join(desk::place::here);
    const auto first = work.join(desk::place::there), second = work.join(desk::place::there);
    work.open(1, 1);
    REQUIRE(work.take(first, at(0ms)));
    CHECK_FALSE(work.take(second, at(800ms))); // overdue rows are made here
    work.leave(first);
    REQUIRE(work.take(second, at(850ms))); // rows that nobody has are anybody's
    CHECK(work.next_deadline() == at(950ms));
    work.leave(second);
    const auto third = work.join(desk::place::there);
    CHECK_FALSE(work.take(third, at(950ms))); // there is no time left for another one
    CHECK(work.take(here, at(950ms)));
}

TEST_CASE("a helper that stands still now and then is not taken for slow, one that is slow is") {
    desk work;
    const auto there = work.join(desk::place::there);
    for (int i = 0; i < 40; ++i) work.learn(there, 1, i % 20 == 19 ? 600ms : 2ms);
    CHECK(work.row_time(there) < 0.0025);
    for (int i = 0; i < 60; ++i) work.learn(there, 1, 600ms); // also by results that came too late
    CHECK(work.row_time(there) > 0.4);
}

TEST_CASE("overdue rows of the first batch go before open ones of the next") {
    desk work;
    const auto here = work.join(desk::place::here), there = work.join(desk::place::there);
    work.open(1, 1);
    work.open(2, 5);
    REQUIRE(work.take(there, at(0ms)));
    const auto early = work.take(here, at(10ms));
    REQUIRE(early);
    CHECK(early->batch == 2);
    work.finish(here, early->id, 1ms);
    const auto late = work.take(here, at(500ms));
    REQUIRE(late);
    CHECK(late->batch == 1);
}

TEST_CASE("who gave a range up does not get it again; results of forgotten batches count no more") {
    desk work;
    const auto here = work.join(desk::place::here), there = work.join(desk::place::there);
    work.open(1, 1);
    const auto range = work.take(there, at(0ms));
    REQUIRE(range);
    work.give_up(there, range->id);
    CHECK_FALSE(work.take(there, at(0ms)));
    const auto mine = work.take(here, at(0ms));
    REQUIRE(mine);
    work.clear();
    CHECK_FALSE(work.finish(here, mine->id, 1ms));
    CHECK_FALSE(work.take(here, at(0ms)));
    work.open(2, 1);
    CHECK(work.take(here, at(0ms)));
}

TEST_CASE("whatever becomes of helpers, each row is written once and every batch ends") {
    for (std::uint32_t seed = 0; seed < 300; ++seed) {
        std::mt19937 random(seed);
        const auto below = [&](std::uint32_t n) { return random() % n; };
        desk work({.most_rows = 8});
        std::vector<std::uint64_t> threads, helpers;
        for (int i = 0; i < 2; ++i) threads.push_back(work.join(desk::place::here));
        struct out {
            std::uint64_t who;
            data::work_range range;
            bool here;
        };
        std::vector<out> running;
        std::map<std::uint64_t, std::vector<int>> written;
        std::uint64_t opened = 0, closed = 0;
        const std::uint64_t most = 12;
        auto now = 0ms;
        while (closed < most) {
            now += std::chrono::milliseconds(below(60));
            if (opened < most && opened - closed < 3) {
                const auto rows = 1 + below(20);
                work.open(++opened, rows);
                written[opened].resize(rows);
            }
            if (helpers.size() < 2 && below(3) == 0)
                helpers.push_back(work.join(desk::place::there));
            if (!helpers.empty() && below(12) == 0) { // one is lost with what it has
                const auto gone = below(std::uint32_t(helpers.size()));
                work.leave(helpers[gone]);
                helpers.erase(helpers.begin() + static_cast<std::ptrdiff_t>(gone));
            }
            for (const auto who : threads)
                if (std::ranges::count(running, who, &out::who) == 0)
                    if (auto r = work.take(who, at(now))) running.push_back({who, *r, true});
            for (const auto who : helpers)
                if (std::ranges::count(running, who, &out::who) < 2)
                    if (auto r = work.take(who, at(now))) running.push_back({who, *r, false});
            if (running.empty()) continue;
            const auto one = below(std::uint32_t(running.size()));
            if (!running[one].here && below(4) == 0) continue; // slow
            const auto it = running[one];
            running.erase(running.begin() + static_cast<std::ptrdiff_t>(one));
            if (!it.here && below(10) == 0) {
                work.give_up(it.who, it.range.id);
                continue;
            }
            if (!it.here && !work.begin_write(it.who, it.range.id)) continue;
            for (std::uint64_t i = 0; i < it.range.count; ++i)
                written[it.range.batch].at(it.range.first + i) += 1;
            work.finish(it.who, it.range.id, 1ms * (1 + below(5)));
            while (closed < opened && work.is_done(closed + 1)) work.close(++closed);
        }
        for (const auto& [batch, rows] : written)
            for (const int times : rows) CHECK(times == 1);
    }
}
