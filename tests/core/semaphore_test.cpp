// SPDX-License-Identifier: Apache-2.0
#include <skein/core/semaphore.hpp>

#include <catch2/catch_test_macros.hpp>

#include <skein/core/awaitable.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/sleep.hpp>

#include <algorithm>
#include <stdexcept>
#include <string>

#include "../support/manual_loop.hpp"

using namespace std::chrono_literals;
using skein::semaphore;
using skein::task;
using skein_test::run;

namespace {
task<void> use(semaphore* s, std::size_t n, char name, std::string* out) {
    co_await s->acquire(n);
    *out += name;
    co_await skein::sleep_for(1s);
    s->release(n);
}
task<void> one_of_many(semaphore* s, int* now, int* most) {
    co_await s->acquire();
    *most = std::max(*most, ++*now);
    co_await skein::sleep_for(1ms);
    --*now;
    s->release();
}
task<void> throws_with_a_permit(semaphore* s) {
    co_await s->acquire();
    const skein::semaphore_permit mine(*s);
    CHECK(s->available() == 0);
    throw std::runtime_error("no");
}
} // namespace

TEST_CASE("a permit gives its unit back, also when its task throws") {
    const auto body = []() -> task<void> {
        semaphore budget(1);
        auto throwing = skein::as_result(throws_with_a_permit(&budget));
        const auto thrown = co_await throwing;
        CHECK(!thrown);
        CHECK(budget.available() == 1);
    };
    run(body());
}

TEST_CASE("no more than the budget is out at a time") {
    const auto body = []() -> task<void> {
        semaphore budget(3);
        int now = 0, most = 0;
        skein::scope s;
        for (int i = 0; i < 20; ++i) s.spawn(one_of_many(&budget, &now, &most));
        auto joined = s.join();
        co_await joined;
        CHECK(most == 3);
        CHECK(budget.available() == 3);
    };
    run(body());
}

TEST_CASE("a large request is not overtaken by small ones") {
    std::string order;
    const auto body = [](std::string* out) -> task<void> {
        semaphore budget(2);
        skein::scope s;
        s.spawn(use(&budget, 1, 'a', out));
        s.spawn(use(&budget, 2, 'B', out));
        s.spawn(use(&budget, 1, 'c', out));
        co_await skein::yield();
        CHECK_FALSE(budget.try_acquire()); // one is free, but someone waits
        auto joined = s.join();
        co_await joined;
        CHECK(budget.try_acquire(2));
        CHECK_FALSE(budget.try_acquire());
        budget.release(2);
    };
    run(body(&order));
    CHECK(order == "aBc");
}

TEST_CASE("a cancelled request takes nothing and lets the next one pass") {
    std::string order;
    const auto body = [](std::string* out) -> task<void> {
        semaphore budget(2);
        skein::scope s, cancelled;
        co_await budget.acquire(1);
        cancelled.spawn(use(&budget, 2, 'X', out));
        co_await skein::yield();
        s.spawn(use(&budget, 1, 'b', out));
        co_await skein::yield();
        CHECK(out->empty());
        cancelled.cancel();
        auto gone = cancelled.join();
        co_await gone;
        auto joined = s.join();
        co_await joined;
        CHECK(budget.available() == 1);
    };
    run(body(&order));
    CHECK(order == "b");
}
