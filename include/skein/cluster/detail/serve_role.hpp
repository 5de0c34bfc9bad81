// SPDX-License-Identifier: Apache-2.0
#pragma once
// The life of a process that is a head, or an agent.

#include <skein/core/awaitable.hpp>
#include <skein/core/cancel.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/stop_signals.hpp>
#include <skein/core/task.hpp>
#include <skein/net/readable_fd.hpp>
#include <skein/net/real_loop.hpp>
#include <skein/proc/leftovers.hpp>
#include <skein/proc/process.hpp>

#include <exception>

namespace skein::cluster::detail {

/// Runs a role until it ends; the first stop signal asks it to.
template <class Role>
task<int> serve_role(net::real_loop* loop, Role* role) {
    stop_signals signals(second_signal::ends_the_process, hang_up::asks_to_end);
    scope beside;
    beside.spawn([](net::real_loop* on, const stop_signals* from, Role* which) -> task<void> {
        auto readable = net::wait_readable(*on, from->fd());
        co_await readable;
        which->stop();
    }(loop, &signals, role));
    beside.spawn(proc::reap_leftovers([] { return true; })); // no user's code runs here
    std::exception_ptr failure;
    try {
        auto serving = role->serve();
        co_await serving;
    } catch (...) {
        failure = std::current_exception();
    }
    beside.cancel();
    auto ended = as_result(shield(beside.join()));
    (void)co_await ended;
    if (failure) std::rethrow_exception(failure);
    co_return exit_code::done;
}

} // namespace skein::cluster::detail
