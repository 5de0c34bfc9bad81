// SPDX-License-Identifier: Apache-2.0
#pragma once
// Asio's signal_set behind net::signals.

#include <skein/net/asio.hpp>
#include <skein/net/use_task.hpp>

namespace skein::net {

struct detail::signal_watch {
    explicit signal_watch(real_loop& on) : set(on.context()) {}
    asio::signal_set set;
};

SKEIN_INLINE signals::signals(real_loop& on, std::initializer_list<int> numbers)
    : watch_(std::make_unique<detail::signal_watch>(on)) {
    for (const int number : numbers) watch_->set.add(number);
}
SKEIN_INLINE signals::signals(signals&& other) noexcept = default;
SKEIN_INLINE signals& signals::operator=(signals&& other) noexcept = default;
SKEIN_INLINE signals::~signals() = default;

SKEIN_INLINE task<int> signals::next() {
    auto waited = watch_->set.async_wait(use_task);
    co_return co_await waited;
}

} // namespace skein::net
