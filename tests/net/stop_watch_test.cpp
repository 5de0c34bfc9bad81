// SPDX-License-Identifier: Apache-2.0
#include "net/support.hpp"

#include <skein/core/event.hpp>
#include <skein/core/scope.hpp>
#include <skein/net/stop_watch.hpp>

#include <catch2/catch_test_macros.hpp>

#include <csignal>
#include <utility>
#include <vector>

#include <unistd.h>

namespace stop_watch_tests {

using skein::task;
using heard_requests = std::vector<std::pair<int, bool>>;

/// Makes requests, one after the other has been heard, and gives what was heard.
template <class Ask>
heard_requests hear(skein::net::stop_sources from, int requests, Ask ask) {
    skein::net::real_loop loop;
    heard_requests heard;
    loop.run([](skein::net::real_loop* on, skein::net::stop_sources sources, int wanted, Ask each,
                heard_requests* to) -> task<void> {
        skein::net::stop_watch watch(*on, sources);
        skein::event changed;
        skein::scope beside;
        beside.spawn(watch.hear([to, &changed](int signal, bool again) {
            to->emplace_back(signal, again);
            changed.set();
        }));
        for (int i = 0; i < wanted; ++i) {
            each(i);
            auto told = changed.wait();
            co_await told;
            changed.reset();
        }
        beside.cancel();
        auto ended = net_test::error_of(beside.join());
        (void)co_await ended;
    }(&loop, from, requests, ask, &heard));
    return heard;
}

TEST_CASE("a stop watch tells signals, and that a second one came", "[net][stop_watch]") {
    const auto heard = hear({}, 2, [](int i) { ::raise(i == 0 ? SIGINT : SIGTERM); });
    CHECK(heard == heard_requests{{SIGINT, false}, {SIGINT, true}});
}

TEST_CASE("the end of the terminal is a request like SIGTERM", "[net][stop_watch]") {
    const auto before = ::signal(SIGHUP, SIG_DFL); // a test under nohup
    const auto heard = hear({}, 1, [](int) { ::raise(SIGHUP); });
    ::signal(SIGHUP, before);
    CHECK(heard == heard_requests{{SIGTERM, false}});
}

TEST_CASE("where the end of the terminal is ignored, it stays so", "[net][stop_watch]") {
    const auto before = ::signal(SIGHUP, SIG_IGN);
    const auto heard = hear({}, 1, [](int) {
        ::raise(SIGHUP);
        ::raise(SIGINT);
    });
    CHECK(::signal(SIGHUP, before) == SIG_IGN);
    CHECK(heard == heard_requests{{SIGINT, false}});
}

TEST_CASE("a descriptor that becomes readable is one request, beside signals or without them",
          "[net][stop_watch]") {
    for (const bool signals : {true, false}) {
        int ends[2] = {-1, -1};
        REQUIRE(::pipe(ends) == 0);
        const auto heard = hear({.signals = signals, .fd = ends[0]}, 1,
                                [&](int) { CHECK(::write(ends[1], "x", 1) == 1); });
        CHECK(heard == heard_requests{{SIGTERM, false}});
        ::close(ends[0]);
        ::close(ends[1]);
    }
}

TEST_CASE("a stop watch without signals leaves them what they are", "[net][stop_watch]") {
    skein::net::real_loop loop;
    struct sigaction before{}, within{};
    ::sigaction(SIGTERM, nullptr, &before);
    const skein::net::stop_watch watch(loop, {.signals = false});
    ::sigaction(SIGTERM, nullptr, &within);
    CHECK(before.sa_handler == within.sa_handler);
    CHECK(watch.signal() == 0);
}

} // namespace stop_watch_tests
