// SPDX-License-Identifier: Apache-2.0
#include "net/support.hpp"

#include <skein/net/loop_thread.hpp>

#include <catch2/catch_test_macros.hpp>

#include <thread>
#include <vector>

using namespace net_test;

namespace {
task<int> twice(int n) {
    auto pause = sleep_for(1ms);
    co_await pause;
    co_return 2 * n;
}
task<void> fail(std::string text) {
    auto pause = sleep_for(1ms);
    co_await pause;
    throw error(errc::not_found, std::move(text));
}
} // namespace

TEST_CASE("run gives the value of a task on the other thread") {
    net::loop_thread there("worker");
    CHECK(there.run([] { return twice(21); }) == 42);
    std::thread::id id;
    const auto current = there.run([&]() -> task<loop*> {
        id = std::this_thread::get_id();
        return []() -> task<loop*> { co_return &loop::current(); }();
    });
    CHECK(current == &there.loop());
    CHECK(id != std::this_thread::get_id());
}

TEST_CASE("run rethrows here, and the loop goes on") {
    net::loop_thread there("worker");
    for (int i = 0; i < 20; ++i) {
        std::string text;
        try {
            there.run([&] { return fail(fmt::format("number {}", i)); });
        } catch (const error& e) {
            text = e.text();
        }
        CHECK(text == fmt::format("number {}", i));
    }
    const auto throws_before = [&]() -> task<void> { throw error(errc::io, "no task"); };
    CHECK_THROWS_AS(there.run(throws_before), error);
    CHECK(there.run([] { return twice(2); }) == 4);
}

TEST_CASE("several threads may run tasks at once") {
    net::loop_thread there("worker");
    std::vector<int> got(8);
    {
        std::vector<std::thread> callers;
        for (int i = 0; i < 8; ++i) {
            callers.emplace_back([&, i] {
                for (int k = 0; k < 50; ++k)
                    got[static_cast<std::size_t>(i)] += there.run([i] { return twice(i); });
            });
        }
        for (auto& c : callers) c.join();
    }
    for (int i = 0; i < 8; ++i) CHECK(got[static_cast<std::size_t>(i)] == 100 * i);
}

TEST_CASE("two loop threads talk over a connection") {
    net::loop_thread a("a"), b("b");
    std::optional<net::real_network> network_a(a.loop()), network_b(b.loop());
    std::unique_ptr<net::listener> at;
    const auto name = fresh_unix();
    b.run([&]() -> task<void> {
        at = network_b->listen(name);
        return []() -> task<void> { co_return; }();
    });
    std::thread serving([&] {
        b.run([&] {
            return [](net::listener* l) -> task<void> {
                net::connection::handle c;
                auto accepting = accept_into(l, options("server"), &c);
                co_await accepting;
                auto receiving = c->receive();
                auto f = co_await receiving;
                c->send(std::move(*f));
                auto closing = c->close();
                co_await closing;
            }(at.get());
        });
    });
    const auto got = a.run([&] {
        return [](net::network* via, net::address to) -> task<byte_buffer> {
            auto connecting = net::connection::connect(*via, to, options("client"));
            auto c = co_await connecting;
            c->send(1, 0, 1, pattern(1000));
            auto receiving = c->receive();
            auto f = co_await receiving;
            auto closing = c->close();
            co_await closing;
            co_return f->body;
        }(&*network_a, name);
    });
    serving.join();
    b.run([&]() -> task<void> {
        at.reset();
        return []() -> task<void> { co_return; }();
    });
    CHECK(got == pattern(1000));
}
