// SPDX-License-Identifier: Apache-2.0
#include <skein/core/awaitable.hpp>

#include <catch2/catch_test_macros.hpp>

#include <skein/core/all.hpp>
#include <skein/core/race.hpp>

#include <memory>
#include <stdexcept>

#include "../support/manual_loop.hpp"

using skein::errc;
using skein::task;
using skein_test::run;

namespace awaitable_test {
/// Something that is not a task but can be turned into one, as a remote ref.
struct promised {
    int value = 0;
};
task<int> as_task(promised p) { co_return p.value; }
} // namespace awaitable_test
using awaitable_test::promised;

namespace {
task<int> give(int value) {
    if (value < 0) throw skein::error(errc::io, "negative");
    if (value == 0) throw std::runtime_error("plain");
    co_return value;
}
} // namespace

TEST_CASE("as_result turns every end into a value") {
    const auto good = run(skein::as_result(give(5)));
    REQUIRE(good);
    CHECK(*good == 5);
    const auto bad = run(skein::as_result(give(-1)));
    REQUIRE_FALSE(bad);
    CHECK(bad.error().code() == errc::io);
    const auto other = run(skein::as_result(give(0)));
    REQUIRE_FALSE(other);
    CHECK(other.error().text() == "plain");
    const auto silent = []() -> task<void> { co_return; };
    CHECK(run(skein::as_result(silent())));
    const auto own = []() -> task<std::unique_ptr<int>> { co_return std::make_unique<int>(1); };
    CHECK(**run(skein::as_result(own())) == 1);
}

TEST_CASE("what as_task knows can be given to all and race") {
    STATIC_CHECK(skein::task_like<promised>);
    STATIC_CHECK(skein::task_like<task<int>>);
    STATIC_CHECK_FALSE(skein::task_like<int>);
    STATIC_CHECK(std::is_same_v<skein::awaited_t<promised>, int>);
    const auto body = []() -> task<int> {
        const promised a{1}, b{2};
        auto both = skein::all(a, b);
        auto [x, y] = co_await both;
        std::vector<promised> many(3, b);
        auto rest = skein::all(std::move(many));
        const auto values = co_await rest;
        auto first = skein::race(a, b);
        const auto winner = co_await first;
        co_return x + y + values[2] + winner.value;
    };
    CHECK(run(body()) == 6);
}
