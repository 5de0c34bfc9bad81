// SPDX-License-Identifier: Apache-2.0
#pragma once
// Signals of the process as something to await.
//
//     net::signals stop(loop, {SIGINT, SIGTERM});
//     auto next = stop.next();
//     int which = co_await next;

#include <skein/core/task.hpp>
#include <skein/net/real_loop.hpp>

#include <initializer_list>
#include <memory>

namespace skein::net {

namespace detail {
struct signal_watch;
}

/// Takes the signals over while it lives: they do not end the process. Belongs to one loop; several
/// objects may watch the same signal, each sees it.
class signals {
public:
    signals(real_loop& on, std::initializer_list<int> numbers);
    signals(signals&& other) noexcept;
    signals& operator=(signals&& other) noexcept;
    ~signals();

    /// Suspends until the next of the signals; one that came since the last call counts. Gives its
    /// number; throws cancelled, then none is lost.
    [[nodiscard]] task<int> next();

private:
    std::unique_ptr<detail::signal_watch> watch_;
};

} // namespace skein::net

#if SKEIN_HEADER_ONLY
#include <skein/net/detail/signals.ipp>
#endif
