// SPDX-License-Identifier: Apache-2.0
#pragma once
// Signals of the process as something to await.
//
//     net::signals stop(loop, {SIGINT, SIGTERM});
//     auto next = stop.next();
//     int which = co_await next;

#include <skein/core/task.hpp>
#include <skein/net/asio.hpp>
#include <skein/net/real_loop.hpp>
#include <skein/net/use_task.hpp>

#include <initializer_list>

namespace skein::net {

/// Takes the signals over while it lives: they do not end the process. Belongs to one loop; several
/// objects may watch the same signal, each sees it.
class signals {
public:
    signals(real_loop& on, std::initializer_list<int> numbers) : set_(on.context()) {
        for (const int number : numbers) set_.add(number);
    }

    /// Suspends until the next of the signals; one that came since the last call counts. Gives its
    /// number; throws cancelled, then none is lost.
    [[nodiscard]] task<int> next() {
        auto waited = set_.async_wait(use_task);
        co_return co_await waited;
    }

private:
    asio::signal_set set_;
};

} // namespace skein::net
