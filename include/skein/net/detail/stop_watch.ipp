// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/net/stop_watch.hpp>.

#include <skein/core/scope.hpp>
#include <skein/net/readable_fd.hpp>

#include <csignal>
#include <utility>

#include <unistd.h>

namespace skein::net {

SKEIN_INLINE stop_watch::stop_watch(real_loop& loop, stop_sources from)
    : loop_(loop), fd_(from.fd) {
    if (from.signals) signals_.emplace(second_signal::is_counted, hang_up::asks_to_end);
}

SKEIN_INLINE int stop_watch::signal() const noexcept {
    const int which = signals_ ? signals_->which() : 0;
    return which == SIGHUP ? SIGTERM : which;
}

SKEIN_INLINE task<void> stop_watch::hear(listener to) {
    scope both;
    if (signals_) both.spawn(hear_signals(&to));
    if (fd_ >= 0) both.spawn(hear_descriptor(&to));
    auto ended = both.join();
    co_await ended;
}

SKEIN_INLINE task<void> stop_watch::hear_signals(const listener* to) {
    for (;;) {
        auto readable = wait_readable(loop_, signals_->fd());
        co_await readable;
        char read[16];
        [[maybe_unused]] const auto n = ::read(signals_->fd(), read, sizeof read);
        (*to)(signal(), signals_->count() > 1);
    }
}
SKEIN_INLINE task<void> stop_watch::hear_descriptor(const listener* to) {
    auto readable = wait_readable(loop_, fd_);
    co_await readable;
    (*to)(SIGTERM, false);
}

} // namespace skein::net
