// SPDX-License-Identifier: Apache-2.0
#include "net/support.hpp"

#include <skein/net/signals.hpp>

#include <catch2/catch_test_macros.hpp>

#include <csignal>

using namespace net_test;

TEST_CASE("a signal is awaited instead of ending the process") {
    const auto body = [](net::real_loop& on) -> task<void> {
        net::signals watch(on, {SIGUSR1, SIGUSR2});
        ::raise(SIGUSR1); // before anyone waits: it counts
        auto first = watch.next();
        const int one = co_await first;
        CHECK(one == SIGUSR1);
        ::raise(SIGUSR2);
        auto second = watch.next();
        const int two = co_await second;
        CHECK(two == SIGUSR2);
    };
    run_real<void>(body);
}

TEST_CASE("a cancelled wait for a signal loses none") {
    const auto body = [](net::real_loop& on) -> task<void> {
        net::signals watch(on, {SIGUSR1});
        auto trying = error_of(drop_value(with_timeout(watch.next(), 2ms)));
        const auto seen = co_await trying;
        REQUIRE(seen);
        CHECK(seen->code() == errc::timeout);
        ::raise(SIGUSR1);
        auto next = watch.next();
        const int number = co_await next;
        CHECK(number == SIGUSR1);
    };
    run_real<void>(body);
}
