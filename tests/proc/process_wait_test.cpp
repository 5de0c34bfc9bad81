// SPDX-License-Identifier: Apache-2.0
#include <skein/core/awaitable.hpp>
#include <skein/core/timeout.hpp>
#include <skein/net/real_loop.hpp>
#include <skein/proc/process_wait.hpp>

#include <chrono>

#include <catch2/catch_test_macros.hpp>

using namespace skein;

namespace {

task<proc::exit_status> wait_for(net::real_loop* loop, proc::child_process* child) {
    auto ended = proc::wait(*loop, *child);
    co_return co_await ended;
}
task<bool> times_out(net::real_loop* loop, proc::child_process* child) {
    auto ended = proc::wait(*loop, *child);
    auto in_time = with_timeout(std::move(ended), std::chrono::milliseconds(20));
    auto asked = as_result(std::move(in_time));
    auto outcome = co_await asked;
    co_return !outcome && outcome.error().code() == errc::timeout;
}

} // namespace

TEST_CASE("a loop waits for a child without blocking", "[rt][process_wait]") {
    net::real_loop loop;
    proc::process_options how;
    how.argv = {"/bin/sh", "-c", "read line; exit 4"};
    int ends[2];
    REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
    how.keep_stdin = true;
    how.fds.emplace_back(ends[0], 0);
    auto child = proc::child_process::spawn(how);
    ::close(ends[0]);
    CHECK(loop.run(times_out(&loop, &child)));
    CHECK(child.running());
    ::close(ends[1]); // it reads the end of its input and leaves
    CHECK(loop.run(wait_for(&loop, &child)).code() == 4);
    CHECK(loop.run(wait_for(&loop, &child)).code() == 4); // a second wait is answered at once
}
