// SPDX-License-Identifier: Apache-2.0
#include "net/support.hpp"

#include <skein/net/readable_fd.hpp>

#include <catch2/catch_test_macros.hpp>

#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

using namespace net_test;

TEST_CASE("an eventfd is awaited until it is written, and stays the caller's") {
    const auto body = [](net::real_loop& on) -> task<void> {
        const int fd = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        auto early = error_of(with_timeout(net::wait_readable(on, fd), 2ms));
        const auto seen = co_await early;
        REQUIRE(seen);
        CHECK(seen->code() == errc::timeout);
        const std::uint64_t one = 1;
        REQUIRE(::write(fd, &one, sizeof one) == sizeof one);
        for (int twice = 0; twice < 2; ++twice) {
            auto waiting = net::wait_readable(on, fd);
            co_await waiting;
        }
        std::uint64_t got = 0;
        CHECK(::read(fd, &got, sizeof got) == sizeof got);
        CHECK(got == 1);
        CHECK(::close(fd) == 0);
    };
    run_real<void>(body);
}

TEST_CASE("the end of a child process is awaited by its pidfd") {
    const auto body = [](net::real_loop& on) -> task<void> {
        int hold[2];
        REQUIRE(::pipe(hold) == 0);
        const pid_t child = ::fork();
        if (child == 0) {
            char c;
            ::close(hold[1]);
            (void)!::read(hold[0], &c, 1);
            ::_exit(0);
        }
        const int fd = static_cast<int>(::syscall(SYS_pidfd_open, child, 0));
        REQUIRE(fd >= 0);
        ::close(hold[0]);
        ::close(hold[1]);
        auto waiting = net::wait_readable(on, fd);
        co_await waiting;
        int code = -1;
        CHECK(::waitpid(child, &code, WNOHANG) == child);
        CHECK(code == 0);
        ::close(fd);
    };
    run_real<void>(body);
}

TEST_CASE("a closed descriptor is an error with its number") {
    const auto body = [](net::real_loop& on) -> task<void> {
        auto trying = error_of(net::wait_readable(on, 987));
        const auto seen = co_await trying;
        REQUIRE(seen);
        CHECK(seen->text().find("987") != std::string::npos);
    };
    run_real<void>(body);
}
