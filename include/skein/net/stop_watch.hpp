// SPDX-License-Identifier: Apache-2.0
#pragma once
// Requests to stop that reach a supervisor: signals of this process, and a descriptor of whoever
// runs it as a part of something larger.
//
//     net::stop_watch requests(loop, {.signals = true, .fd = options.stop_fd});
//     beside.spawn(requests.hear([&](int signal, bool again) { again ? kill_all() : stop(signal); }));

#include <skein/core/stop_signals.hpp>
#include <skein/core/task.hpp>
#include <skein/net/real_loop.hpp>

#include <functional>
#include <optional>

namespace skein::net {

/// Where requests come from.
struct stop_sources {
    bool signals = true; ///< SIGINT, SIGTERM, SIGHUP; false: they stay what they are
    int fd = -1;         ///< readable: a request, as SIGTERM is one; the caller's. -1: none
};

/// Holds the signals while it lives (stop_signals); hears of requests while hear() runs. Made,
/// used and destroyed on the loop's thread.
class stop_watch {
public:
    /// Told of a request on the loop's thread: SIGINT or SIGTERM, and whether one came before. The
    /// end of the terminal (SIGHUP) counts as SIGTERM, and as nothing where it is ignored (nohup).
    using listener = std::function<void(int signal, bool again)>;

    stop_watch(real_loop& loop, stop_sources from);

    /// Runs until it is cancelled. One at a time.
    ///   errors  cancelled; io: the descriptor cannot be polled
    [[nodiscard]] task<void> hear(listener to);
    /// The first signal that came, also one that hear() has not told of yet; 0: none. A request by
    /// the descriptor is none.
    [[nodiscard]] int signal() const noexcept;

private:
    task<void> hear_signals(const listener* to);
    task<void> hear_descriptor(const listener* to);

    real_loop& loop_;
    int fd_;
    std::optional<stop_signals> signals_;
};

} // namespace skein::net

#if SKEIN_HEADER_ONLY
#include <skein/net/detail/stop_watch.ipp>
#endif
