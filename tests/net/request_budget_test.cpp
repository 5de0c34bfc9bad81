// SPDX-License-Identifier: Apache-2.0
#include <skein/net/request_budget.hpp>

#include <catch2/catch_test_macros.hpp>

#include <memory>
#include <string>
#include <utility>

using namespace skein;

TEST_CASE("what is held counts for its peer and over all, as long as it lives") {
    auto budget = std::make_shared<net::request_budget>();
    const auto one = budget->share_of(7), same = budget->share_of(7), other = budget->share_of(8);
    CHECK(one == same);
    CHECK(budget->share_of(0) != budget->share_of(0));
    {
        net::request_hold a(budget, one, &net::request_load::running);
        a.add(2);
        net::request_hold b(budget, other, &net::request_load::running);
        b.add(3);
        CHECK(same->running == 2);
        CHECK(budget->held().running == 5);
        net::request_hold moved = std::move(a);
        CHECK(moved.amount() == 2);
        b = std::move(moved);
        CHECK(other->running == 0);
        CHECK(budget->held().running == 2);
    }
    CHECK(budget->held() == net::request_load());
    CHECK(*one == net::request_load());
}

TEST_CASE("what finds no room is refused with bound and peer, and one alone may be larger") {
    const net::request_load most{.running = 2, .reply_bytes = 100};
    net::request_load held{.running = 1};
    CHECK_FALSE(net::over_budget(&net::request_load::running, 1, most, held, false, "p", false));
    held.running = 2;
    const auto full =
        net::over_budget(&net::request_load::running, 1, most, held, false, "p", false);
    REQUIRE(full);
    CHECK(full->code() == errc::exhausted);
    CHECK(full->text().find('p') != std::string::npos);
    CHECK(full->text().find("running is 2") != std::string::npos);
    CHECK_FALSE(
        net::over_budget(&net::request_load::reply_bytes, 500, most, held, true, "p", true));
    CHECK(net::over_budget(&net::request_load::reply_bytes, 500, most, held, true, "p", false));
    held.reply_bytes = 1;
    CHECK(net::over_budget(&net::request_load::reply_bytes, 500, most, held, true, "p", true));
}
