// SPDX-License-Identifier: Apache-2.0
#include "net/support.hpp"

#include <skein/net/real_loop.hpp>
#include <skein/net/use_task.hpp>

#include <catch2/catch_test_macros.hpp>

#include <thread>

using namespace net_test;

TEST_CASE("sleep takes at least its time, in order") {
    const auto body = [](net::real_loop& on) -> task<void> {
        const auto begin = std::chrono::steady_clock::now();
        std::string order;
        scope both;
        const auto say = [](std::string* out, char c, duration d) -> task<void> {
            auto pause = sleep_for(d);
            co_await pause;
            *out += c;
        };
        both.spawn(say(&order, 'b', 20ms));
        both.spawn(say(&order, 'a', 5ms));
        auto joined = both.join();
        co_await joined;
        CHECK(order == "ab");
        CHECK(std::chrono::steady_clock::now() - begin >= 20ms);
        CHECK(&loop::current() == &on);
    };
    run_real<void>(body);
}

TEST_CASE("a call posted from another thread wakes a loop that waits without a timer") {
    net::real_loop loop;
    event called;
    const auto body = [](event* e) -> task<void> {
        auto waiting = e->wait();
        co_await waiting;
    };
    std::thread other([&] { loop.post_from_any_thread([&] { called.set(); }); });
    loop.run(body(&called));
    other.join();
    CHECK(called.is_set());
}

TEST_CASE("ten thousand posts from two threads all arrive") {
    net::real_loop loop;
    int count = 0;
    event done;
    const auto body = [](event* e) -> task<void> {
        auto waiting = e->wait();
        co_await waiting;
    };
    const auto send = [&] {
        for (int i = 0; i < 5000; ++i) {
            loop.post_from_any_thread([&] {
                if (++count == 10'000) done.set();
            });
        }
    };
    std::thread a(send), b(send);
    loop.run(body(&done));
    a.join();
    b.join();
    CHECK(count == 10'000);
}

TEST_CASE("a loop can run one task after another, and errors come out of run") {
    net::real_loop loop;
    const auto number = [](int n) -> task<int> { co_return n; };
    const auto failing = []() -> task<void> {
        auto pause = sleep_for(1ms);
        co_await pause;
        throw error(errc::io, "as planned");
    };
    CHECK(loop.run(number(1)) == 1);
    CHECK_THROWS_AS(loop.run(failing()), error);
    CHECK(loop.run(number(2)) == 2);
}

TEST_CASE("a task that only yields does not keep sockets and timers out") {
    const auto body = [](net::real_loop& on) -> task<void> {
        bool stop = false;
        scope spinning;
        const auto spin = [](bool* end) -> task<void> {
            while (!*end) {
                auto others = yield();
                co_await others;
            }
        };
        spinning.spawn(spin(&stop));
        asio::steady_timer timer(on.context(), 2ms);
        co_await timer.async_wait(use_task);
        auto pause = sleep_for(2ms);
        co_await pause;
        stop = true;
        auto joined = spinning.join();
        co_await joined;
    };
    run_real<void>(body);
}

TEST_CASE("connections that were dropped are destroyed before the loop is") {
    std::vector<std::weak_ptr<int>> alive;
    const auto body = [](net::network* via, std::vector<std::weak_ptr<int>>* out) -> task<void> {
        std::vector<pair> all; // dropped as the last act of the loop's task
        for (int i = 0; i < 20; ++i) {
            auto connecting =
                connect_pair(via, via, fresh_unix(), options("client"), options("server"));
            pair p = co_await connecting;
            const auto kept = std::make_shared<int>(i);
            for (auto* end : {&p.client, &p.server})
                (*end)->set_handler([kept](const net::frame_view&) {});
            out->push_back(kept);
            all.push_back(std::move(p));
        }
    };
    {
        net::real_loop loop;
        net::real_network network(loop);
        loop.run(body(&network, &alive));
    }
    for (const auto& one : alive) CHECK(one.expired());
}
