// SPDX-License-Identifier: Apache-2.0
#include "net/support.hpp"

#include <skein/core/log.hpp>
#include <skein/net/dial.hpp>
#include <skein/net/endpoint.hpp>

#include <catch2/catch_test_macros.hpp>

using namespace net_test;

TEST_CASE("patience: refused again and again, then the error tells tries, time and cause") {
    const auto body = [](sim::network* w) -> task<void> {
        net::reconnect_policy policy;
        policy.max_tries = 5;
        auto trying = error_of(drop_value(net::connect_patiently(
            w->host("a"), net::address::sim("b", 1), options(), policy, w->loop().random())));
        const auto seen = co_await trying;
        REQUIRE(seen);
        CHECK(seen->code() == errc::refused);
        CHECK(seen->text().starts_with("connect sim:b:1 failed after 5 tries ("));
        CHECK(seen->cause().find("is the program there running?") != std::string::npos);
    };
    sim::loop loop(1);
    sim::network network(loop, sim::faults());
    loop.run(body(&network));
    // 50 + 100 + 200 + 400 ms, each less up to half.
    CHECK(loop.elapsed() > 375ms);
    CHECK(loop.elapsed() < 760ms);
}

TEST_CASE("patience: a server that comes late is found, a wrong token is not tried again") {
    const auto body = [](sim::network* w) -> task<void> {
        scope serving;
        const auto late = [](sim::network* n) -> task<void> {
            auto pause = sleep_for(300ms);
            co_await pause;
            net::endpoint server(n->host("b"), net::address::sim("b", 1), options("server"));
            auto running = server.serve(&echo);
            co_await running;
        };
        serving.spawn(late(w));
        auto connecting = net::connect_patiently(w->host("a"), net::address::sim("b", 1), options(),
                                                 {}, w->loop().random());
        auto c = co_await connecting;
        CHECK(c->peer().name == "server");
        auto closing = c->close();
        co_await closing;
        auto thief = error_of(
            drop_value(net::connect_patiently(w->host("a"), net::address::sim("b", 1),
                                              options("thief", '8'), {}, w->loop().random())));
        const auto seen = co_await thief;
        REQUIRE(seen);
        CHECK(seen->code() == errc::permission_denied);
        serving.cancel();
        auto joined = serving.join();
        co_await joined;
    };
    quiet log_lines;
    sim::loop loop(1);
    sim::network network(loop, sim::faults());
    loop.run(body(&network));
}

TEST_CASE("delays grow to their bound and are spread") {
    net::reconnect_policy p;
    seeded_random random(1);
    CHECK(p.delay(1, random) <= 50ms);
    CHECK(p.delay(1, random) >= 25ms);
    CHECK(p.delay(30, random) <= 2s);
    CHECK(p.delay(30, random) >= 1s);
    CHECK(p.delay(3, random) != p.delay(3, random));
}

TEST_CASE("patience under simulation draws from the seed") {
    const auto took = [](std::uint64_t seed) {
        const auto body = [](sim::network* w) -> task<void> {
            auto trying = error_of(drop_value(
                net::connect_patiently(w->host("a"), net::address::sim("b", 1), options())));
            (void)co_await trying;
        };
        sim::loop loop(seed);
        sim::network network(loop, sim::faults());
        loop.run(body(&network));
        return loop.elapsed();
    };
    CHECK(took(5) == took(5));
    CHECK(took(5) != took(6));
}

TEST_CASE("patience: as many tries as fit in before a point in time") {
    const auto body = [](sim::network* w) -> task<void> {
        net::reconnect_policy policy;
        policy.max_tries = 0;
        policy.until = loop::current().now() + 3s;
        auto trying = error_of(drop_value(
            net::dial_patiently(w->host("a"), net::address::sim("b", 1), options(), policy)));
        const auto seen = co_await trying;
        REQUIRE(seen);
        CHECK(seen->code() == errc::refused);
        CHECK(seen->text().find("tries") != std::string::npos);
        CHECK(loop::current().now() <= policy.until);
        // Somebody who accepts and says nothing does not keep us longer either.
        auto mute = w->host("b").listen(net::address::sim("b", 1));
        policy.until = loop::current().now() + 2s;
        auto hanging = error_of(drop_value(
            net::dial_patiently(w->host("a"), net::address::sim("b", 1), options(), policy)));
        const auto late = co_await hanging;
        REQUIRE(late);
        CHECK(late->code() == errc::timeout);
        CHECK(loop::current().now() <= policy.until + 1ms);
    };
    sim::loop loop(1);
    sim::network network(loop, sim::faults());
    loop.run(body(&network));
}

TEST_CASE("a handshake may take longer than a connect if the caller says so") {
    const auto body = [](sim::network* w) -> task<void> {
        auto listener = w->host("b").listen(net::address::sim("b", 1));
        scope serving;
        const auto slow = [](net::listener* at) -> task<void> {
            auto accepting = at->accept();
            auto s = co_await accepting;
            auto loading = sleep_for(20s); // a program that needs its time to start
            co_await loading;
            auto greeting = net::authenticate(*s, net::side::accepting, options("slow"));
            const auto peer = co_await greeting;
            CHECK(peer.name == "patient");
        };
        serving.spawn(slow(listener.get()));
        auto mine = options("patient");
        mine.bounds.handshake_deadline = 60s;
        auto dialing = net::dial_patiently(w->host("a"), net::address::sim("b", 1), mine);
        const auto made = co_await dialing;
        CHECK(made.peer.name == "slow");
        auto joined = serving.join();
        co_await joined;
    };
    sim::loop loop(1);
    sim::network network(loop, sim::faults());
    loop.run(body(&network));
}
