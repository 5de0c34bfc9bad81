// SPDX-License-Identifier: Apache-2.0
#include "net/support.hpp"

#include <skein/sim/host_loop.hpp>
#include <skein/sim/loop.hpp>

#include <catch2/catch_test_macros.hpp>

#if defined(__SANITIZE_ADDRESS__)
#define SKEIN_TEST_LSAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SKEIN_TEST_LSAN 1
#endif
#endif
#if defined(SKEIN_TEST_LSAN)
#include <sanitizer/lsan_interface.h>
#endif

using namespace net_test;

TEST_CASE("a year of virtual time takes no time") {
    const auto body = []() -> task<void> {
        auto pause = sleep_for(std::chrono::hours(24 * 364));
        co_await pause;
    };
    sim::loop loop(1);
    const auto begin = std::chrono::steady_clock::now();
    loop.run(body());
    CHECK(loop.elapsed() >= std::chrono::hours(24 * 364));
    CHECK(std::chrono::steady_clock::now() - begin < 10s);
}

TEST_CASE("events run in the order of their time; ties are drawn by the seed") {
    const auto run = [](std::uint64_t seed) {
        sim::loop loop(seed);
        std::string order;
        const auto body = [](sim::loop* on, std::string* out) -> task<void> {
            for (char c = 'a'; c <= 'h'; ++c) on->after(1ms, [out, c] { *out += c; });
            on->after(500us, [out] { *out += '0'; });
            on->after(2ms, [out] { *out += '9'; });
            auto pause = sleep_for(3ms);
            co_await pause;
        };
        loop.run(body(&loop, &order));
        return order;
    };
    const auto one = run(1), two = run(2);
    CHECK(one == run(1));
    CHECK(one != two);
    for (const auto& s : {one, two}) {
        CHECK(s.size() == 10);
        CHECK(s.front() == '0');
        CHECK(s.back() == '9');
    }
}

TEST_CASE("the trace of a seed is known: every compiler must give this one") {
    const auto body = [](sim::loop* on) -> task<void> {
        int left = 100;
        for (int i = 0; i < 100; ++i) {
            on->after(on->draw_delay(duration(0), 5ms), [&left] { --left; });
        }
        while (left > 0) {
            auto pause = sleep_for(on->draw_delay(10us, 1ms));
            co_await pause;
        }
    };
    sim::loop loop(7);
    loop.run(body(&loop));
    CHECK(loop.events() == 100);
    CHECK(fmt::format("{:016x}", loop.trace_hash()) == "64910805bef62a18");
}

TEST_CASE("the lines of a trace tell what happened, when, and what was drawn before") {
    const auto body = [](sim::loop* on) -> task<void> {
        on->after(2ms, [on] { on->trace(7); });
        auto pause = sleep_for(5ms);
        co_await pause;
        (void)on->random().next();
        on->trace(8);
    };
    const auto run = [&body](bool listens) {
        std::vector<std::string> lines;
        sim::loop loop(1);
        if (listens)
            loop.set_trace_sink([&lines](std::string_view line) { lines.emplace_back(line); });
        loop.run(body(&loop));
        return std::pair(loop.trace_hash(), lines);
    };
    const auto [hash, lines] = run(true);
    CHECK(hash == run(false).first);
    REQUIRE(lines.size() == 4);
    const auto begins = [&lines](std::size_t at, std::string_view how) {
        return lines[at].starts_with(how);
    };
    CHECK(begins(0, "event 1 at "));
    CHECK(begins(1, "value 7 at 2"));
    CHECK(begins(2, "timer "));
    CHECK(begins(3, "value 8 at 5"));
    for (std::size_t i = 0; i < 3; ++i) CHECK(lines[i].ends_with(" draws 1"));
    CHECK(lines[3].ends_with(" draws 2"));
}

TEST_CASE("a world in which nothing can happen any more is an error, not a hang") {
    // What waits in such a world is abandoned on purpose: nobody can wake it, and the program is to
    // end.
#if defined(SKEIN_TEST_LSAN)
    const __lsan::ScopedDisabler abandoned;
#endif
    const auto body = []() -> task<void> {
        event never;
        auto waiting = never.wait();
        co_await waiting;
    };
    // The stuck task is taken down by its scope: run it under one that is cancelled afterwards.
    sim::loop loop(3);
    cancel_source stop;
    std::string text;
    try {
        loop.run(body(), stop.token());
    } catch (const error& e) {
        text = e.text();
    }
    CHECK(text.find("seed 3 is stuck") != std::string::npos);
    SECTION("also where one of its hosts waits") {
        sim::loop other(4);
        sim::host_loop host(other, {1000, 0s});
        text.clear();
        try {
            other.run(sim::run_on(host, body()), stop.token());
        } catch (const error& e) {
            text = e.text();
        }
        CHECK(text.find("seed 4 is stuck") != std::string::npos);
    }
}

TEST_CASE("a task that only yields gets older, and a budget ends a world that does not end") {
    const auto spin = []() -> task<void> {
        for (;;) {
            auto others = yield();
            co_await others;
        }
    };
    const auto body = [](task<void> inner) -> task<void> {
        auto limited = with_timeout(std::move(inner), 1ms);
        co_await limited;
    };
    sim::loop loop(1);
    CHECK_THROWS_AS(loop.run(body(spin())), error);
    CHECK(loop.elapsed() >= 1ms);
}

TEST_CASE("draws stay in their range") {
    sim::loop loop(1);
    int hits = 0;
    for (int i = 0; i < 10'000; ++i) {
        const auto d = loop.draw_delay(3us, 5us);
        REQUIRE(d >= 3us);
        REQUIRE(d <= 5us);
        hits += loop.draw(0.25);
    }
    CHECK(hits > 2200);
    CHECK(hits < 2800);
    CHECK_FALSE(loop.draw(0));
    CHECK(loop.draw(1));
}
