// SPDX-License-Identifier: Apache-2.0
#include <skein/core/stop_signals.hpp>

#include <catch2/catch_test_macros.hpp>

#include <csignal>

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

using skein::stop_signals;

namespace {
bool readable(int fd) {
    pollfd p{fd, POLLIN, 0};
    return ::poll(&p, 1, 0) == 1;
}
auto handler_of(int signal) {
    struct sigaction now{};
    ::sigaction(signal, nullptr, &now);
    return now.sa_handler;
}
} // namespace

TEST_CASE("the first stop signal is taken down and seen in every way") {
    const auto before = handler_of(SIGTERM);
    {
        const stop_signals stops;
        CHECK_FALSE(stops.asked().load());
        CHECK_FALSE(readable(stops.fd()));
        CHECK(stops.exit_code() == 0);
        ::raise(SIGTERM);
        CHECK(stops.asked().load());
        CHECK(readable(stops.fd()));
        CHECK(stops.which() == SIGTERM);
        CHECK(stops.exit_code() == 143);
        CHECK(handler_of(SIGTERM) == SIG_DFL); // the next one ends the process, whichever it is
        CHECK(handler_of(SIGINT) == SIG_DFL);
    }
    CHECK(handler_of(SIGTERM) == before);
}

TEST_CASE("the second stop signal ends the process") {
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        const stop_signals stops;
        ::raise(SIGTERM);
        ::raise(SIGINT);
        ::_exit(0);
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    REQUIRE(WIFSIGNALED(status));
    CHECK(WTERMSIG(status) == SIGINT);
}

TEST_CASE("where signals are counted none ends the process, and each can be waited for") {
    const auto before = handler_of(SIGINT);
    {
        const stop_signals stops(skein::second_signal::is_counted);
        ::raise(SIGTERM);
        CHECK(stops.count() == 1);
        char byte = 1;
        REQUIRE(::read(stops.fd(), &byte, 1) == 1);
        CHECK_FALSE(readable(stops.fd()));
        ::raise(SIGINT);
        ::raise(SIGINT);
        CHECK(stops.count() == 3);
        CHECK(stops.which() == SIGTERM); // the first
        CHECK(readable(stops.fd()));
    }
    CHECK(handler_of(SIGINT) == before);
    CHECK(stop_signals().count() == 0);
}

TEST_CASE("of two inside each other the inner one hears, and the outer one goes on after it") {
    const stop_signals outer;
    {
        const stop_signals inner;
        ::raise(SIGINT);
        CHECK(inner.which() == SIGINT);
        CHECK_FALSE(readable(outer.fd()));
    }
    CHECK_FALSE(outer.asked().load());
    ::raise(SIGTERM);
    CHECK(outer.which() == SIGTERM);
    CHECK(readable(outer.fd()));
}

TEST_CASE("a terminal that closes asks to end as SIGTERM does, and says so more than once") {
    const auto before = ::signal(SIGHUP, SIG_DFL); // a test under nohup
    {
        const stop_signals stops(skein::second_signal::ends_the_process,
                                 skein::hang_up::asks_to_end);
        ::raise(SIGHUP);
        ::raise(SIGHUP);
        CHECK(stops.asked().load());
        CHECK(stops.count() == 1);
        CHECK(stops.exit_code() == 128 + SIGHUP);
    }
    CHECK(handler_of(SIGHUP) == SIG_DFL);
    {
        const stop_signals others;
        CHECK(handler_of(SIGHUP) == SIG_DFL);
    }
    ::signal(SIGHUP, before);
}

TEST_CASE("a terminal that closes is nothing to a process under nohup") {
    const auto before = ::signal(SIGHUP, SIG_IGN);
    {
        const stop_signals stops(skein::second_signal::ends_the_process,
                                 skein::hang_up::asks_to_end);
        ::raise(SIGHUP);
        CHECK_FALSE(stops.asked().load());
    }
    CHECK(handler_of(SIGHUP) == SIG_IGN);
    ::signal(SIGHUP, before);
}

TEST_CASE("the two signals are free while nobody has taken them") {
    struct sigaction before_int{}, before_term{};
    struct sigaction none{};
    none.sa_handler = SIG_DFL; // a test runner has handlers of its own
    ::sigaction(SIGINT, &none, &before_int);
    ::sigaction(SIGTERM, &none, &before_term);
    CHECK(stop_signals::are_free());
    {
        const stop_signals stops;
        CHECK_FALSE(stop_signals::are_free());
        ::raise(SIGTERM); // its handler is gone now, it is not
        CHECK_FALSE(stop_signals::are_free());
    }
    CHECK(stop_signals::are_free());
    struct sigaction own{};
    own.sa_handler = [](int) {};
    ::sigaction(SIGINT, &own, nullptr);
    CHECK_FALSE(stop_signals::are_free());
    ::sigaction(SIGINT, &before_int, nullptr);
    ::sigaction(SIGTERM, &before_term, nullptr);
}
