// SPDX-License-Identifier: Apache-2.0
#include <tests/apps/apps.hpp>
#include <tests/support/sim_cluster.hpp>

#include <skein/rt/actor_pool.hpp>

#include <algorithm>
#include <map>
#include <numeric>

#include <catch2/catch_test_macros.hpp>

namespace actor_pool_test {

using namespace skein;
using namespace std::chrono_literals;
using test::in_sim;
using test::sim_cluster;

struct member {
    int number = 0;
    int under_way = 0;
    static inline int most = 0;
    static inline std::map<int, int> calls;

    task<int> square(int x) {
        ++calls[number];
        most = std::max(most, ++under_way);
        const int ms = number == 0 ? 100 : 10; // one is slow
        co_await sleep_for(std::chrono::milliseconds(ms));
        --under_way;
        if (x < 0) throw std::domain_error("negative");
        co_return x* x;
    }
    void note(int) { ++calls[number]; }
};

task<actor_pool<member>> make_pool(int n) {
    member::most = 0;
    member::calls.clear();
    std::vector<actor_handle<member>> team;
    for (int i = 0; i < n; ++i) {
        auto made = co_await actor<member>(i);
        team.push_back(made);
    }
    co_return actor_pool<member>(std::move(team));
}

TEST_CASE("a call goes to the actor with the least to do", "[O11][rt][actor_pool]") {
    in_sim(1, 2, [](sim_cluster&) -> task<void> {
        auto making = make_pool(3);
        auto pool = co_await making;
        std::vector<ref<int>> all;
        for (int i = 0; i < 6; ++i) all.push_back(pool.submit<&member::square>(i));
        for (const auto& a : pool.actors()) CHECK(a.pending() == 2);
        co_await sleep_for(50ms); // all but the slow one are done
        all.push_back(pool.submit<&member::square>(6));
        CHECK(pool.actors()[0].pending() == 2);
        for (int i = 0; i < 7; ++i) {
            const int got = co_await all[static_cast<std::size_t>(i)];
            CHECK(got == i * i);
        }
        CHECK(member::calls[0] == 2);
    });
}

TEST_CASE("map gives results in order, and never more ahead than it says",
          "[O11][rt][actor_pool]") {
    in_sim(2, 2, [](sim_cluster&) -> task<void> {
        auto making = make_pool(3);
        auto pool = co_await making;
        std::vector<int> items(40);
        std::iota(items.begin(), items.end(), 0);
        auto mapped = pool.map<&member::square>(items);
        const auto squares = co_await mapped;
        REQUIRE(squares.size() == 40);
        for (int i = 0; i < 40; ++i) CHECK(squares[static_cast<std::size_t>(i)] == i * i);
        CHECK(member::most <= 6);
        CHECK(member::calls[0] < member::calls[1]); // the slow one gets less
        auto noted = pool.map<&member::note>(items);
        co_await noted;
        CHECK(member::calls[0] + member::calls[1] + member::calls[2] == 80);
    });
}

TEST_CASE("map fails with the first failure and cancels the rest", "[rt][actor_pool]") {
    in_sim(3, 2, [](sim_cluster& c) -> task<void> {
        auto making = make_pool(2);
        auto pool = co_await making;
        auto mapped = pool.map<&member::square>(std::vector<int>{1, -1, 3, 4});
        auto asked = as_result(std::move(mapped));
        const auto outcome = co_await asked;
        REQUIRE_FALSE(outcome);
        CHECK(std::string(outcome.error().what()).find("negative") != std::string::npos);
        co_await sleep_for(200ms);
        CHECK(c.running() == 0);
    });
}

TEST_CASE("an actor that has ended gets no calls while there are others", "[rt][actor_pool]") {
    in_sim(4, 2, [](sim_cluster&) -> task<void> {
        auto making = make_pool(2);
        auto pool = co_await making;
        kill(pool.actors()[0]);
        for (int i = 0; i < 4; ++i) {
            const int got = co_await pool.submit<&member::square>(i);
            CHECK(got == i * i);
        }
        kill(pool.actors()[1]);
        auto asked = as_result(pool.submit<&member::square>(1));
        const auto outcome = co_await asked;
        CHECK_FALSE(outcome);
    });
}

} // namespace actor_pool_test
