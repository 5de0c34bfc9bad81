// SPDX-License-Identifier: Apache-2.0
#include <skein/core/timer_wheel.hpp>

#include <catch2/catch_test_macros.hpp>

#include <skein/core/philox.hpp>

#include <algorithm>
#include <memory>
#include <vector>

using namespace std::chrono_literals;
using skein::duration;
using skein::time_point;
using skein::timer_node;
using skein::timer_wheel;

namespace {
struct probe : timer_node {
    explicit probe(std::vector<int>& log, int name = 0)
        : timer_node([](timer_node& t) {
              auto& self = static_cast<probe&>(t);
              self.out->push_back(self.id);
          }),
          out(&log), id(name) {}
    std::vector<int>* out;
    int id;
};
time_point at(duration d) { return time_point(d); }
} // namespace

TEST_CASE("a timer fires when its time is reached, not before and only once") {
    std::vector<int> fired;
    timer_wheel wheel;
    probe p(fired, 1);
    for (const duration d :
         {1ns, 63ns, 64ns, 65ns, 4095ns, 4096ns, 1'000'000ns, 3'600'000'000'000ns}) {
        fired.clear();
        timer_wheel fresh;
        fresh.set(p, at(d));
        CHECK(p.is_set());
        CHECK(fresh.next() == at(d));
        fresh.advance(at(d - 1ns));
        CHECK(fired.empty());
        fresh.advance(at(d));
        CHECK(fired.size() == 1);
        CHECK_FALSE(p.is_set());
        CHECK_FALSE(fresh.next());
        fresh.advance(at(d + 1h));
        CHECK(fired.size() == 1);
    }
}

TEST_CASE("cancelling and destroying take a timer back, setting again moves it") {
    std::vector<int> fired;
    timer_wheel wheel;
    probe a(fired, 1), b(fired, 2);
    {
        probe gone(fired, 3);
        wheel.set(gone, at(1s));
    }
    wheel.set(a, at(1s));
    wheel.set(b, at(1s));
    a.cancel();
    a.cancel();
    wheel.set(b, at(3s));
    CHECK(wheel.next() == at(3s));
    wheel.advance(at(2s));
    CHECK(fired.empty());
    wheel.advance(at(4s));
    CHECK(fired == std::vector<int>{2});
    CHECK_FALSE(wheel.next());
}

TEST_CASE("timers fire in order of time, equal times in order of setting") {
    std::vector<int> fired;
    timer_wheel wheel;
    std::vector<std::unique_ptr<probe>> all;
    for (int i = 0; i < 100; ++i) {
        all.push_back(std::make_unique<probe>(fired, i));
        wheel.set(*all.back(), at(std::chrono::milliseconds(i % 10)));
    }
    wheel.advance(at(1s));
    REQUIRE(fired.size() == 100);
    std::vector<int> expected;
    for (int ms = 0; ms < 10; ++ms)
        for (int i = ms; i < 100; i += 10) expected.push_back(i);
    CHECK(fired == expected);
}

TEST_CASE("a fired timer may set itself and others; what is due fires in the same call") {
    struct repeating : timer_node {
        repeating(timer_wheel& w, int& n)
            : timer_node([](timer_node& t) {
                  auto& self = static_cast<repeating&>(t);
                  if (++self.count < 10) self.wheel.set(self, self.when() + 1ms);
              }),
              wheel(w), count(n) {}
        timer_wheel& wheel;
        int& count;
    };
    timer_wheel wheel;
    int count = 0;
    repeating r(wheel, count);
    wheel.set(r, at(1ms));
    wheel.advance(at(5ms));
    CHECK(count == 5);
    wheel.advance(at(1h));
    CHECK(count == 10);
}

TEST_CASE("a time that has passed fires at the next advance") {
    std::vector<int> fired;
    timer_wheel wheel(at(10s));
    probe p(fired);
    wheel.set(p, at(5s));
    CHECK(wheel.next() == at(10s));
    wheel.advance(at(10s));
    CHECK(fired.size() == 1);
    wheel.set(p, time_point::min());
    wheel.advance(at(10s));
    CHECK(fired.size() == 2);
    wheel.set(p, time_point::max());
    wheel.advance(at(24h * 365));
    CHECK(fired.size() == 2);
    CHECK(p.is_set());
}

TEST_CASE("the wheel agrees with a sorted list over many random steps") {
    skein::philox_stream random(11);
    timer_wheel wheel;
    std::vector<int> fired;
    struct entry {
        std::unique_ptr<probe> timer;
        std::int64_t when = -1; ///< -1: not set
    };
    std::vector<entry> all;
    for (int i = 0; i < 200; ++i) all.push_back({std::make_unique<probe>(fired, i), -1});
    std::int64_t now = 0;
    for (int step = 0; step < 20'000; ++step) {
        auto& one = all[random.below(all.size())];
        switch (random.below(3)) {
        case 0:
        case 1: {
            // All magnitudes, so that all levels are used.
            const auto distance =
                static_cast<std::int64_t>(random.below(std::uint64_t{1} << random.below(45)));
            one.when = now + distance;
            wheel.set(*one.timer, at(duration(one.when)));
            break;
        }
        case 2:
            one.when = -1;
            one.timer->cancel();
            break;
        }
        std::int64_t earliest = -1;
        for (const auto& e : all)
            if (e.when >= 0 && (earliest < 0 || e.when < earliest)) earliest = e.when;
        const auto next = wheel.next();
        REQUIRE(next.has_value() == (earliest >= 0));
        if (next) { // exact for few timers, a lower bound that is ahead of now for many
            const auto told = next->time_since_epoch().count();
            REQUIRE(told <= std::max(earliest, now));
            REQUIRE((told > now || earliest <= now));
        }

        if (random.below(4) == 0) {
            now += static_cast<std::int64_t>(random.below(std::uint64_t{1} << random.below(40)));
            fired.clear();
            wheel.advance(at(duration(now)));
            std::vector<std::int64_t> times;
            for (const int i : fired) {
                auto& e = all[static_cast<std::size_t>(i)];
                REQUIRE(e.when >= 0);
                REQUIRE(e.when <= now);
                times.push_back(e.when);
                e.when = -1;
            }
            REQUIRE(std::is_sorted(times.begin(), times.end()));
            for (const auto& e : all) REQUIRE((e.when < 0 || e.when > now));
        }
    }
}

TEST_CASE("many deadlines close together do not make next() slow") {
    // A hundred thousand calls with a deadline of about half a minute lie in one slot.
    std::vector<int> fired;
    std::vector<std::unique_ptr<probe>> all;
    timer_wheel wheel;
    for (int i = 0; i < 100'000; ++i) {
        all.push_back(std::make_unique<probe>(fired, i));
        wheel.set(*all.back(), at(30s + duration(i)));
    }
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < 20'000; ++i) REQUIRE(wheel.next() <= at(30s));
    CHECK(std::chrono::steady_clock::now() - begin < 2s);

    // The lower bounds lead to the first timer in a few steps, never past it.
    int steps = 0;
    for (; fired.empty(); ++steps) {
        const auto next = wheel.next();
        REQUIRE(next.has_value());
        REQUIRE(*next <= at(30s));
        wheel.advance(*next);
    }
    CHECK(fired == std::vector<int>{0});
    CHECK(steps <= 12);
}
