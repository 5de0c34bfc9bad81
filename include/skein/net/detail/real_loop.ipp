// SPDX-License-Identifier: Apache-2.0
#pragma once
// The real world's loop: time from the system's steady clock, events from Asio.

#include <skein/core/sleep.hpp>
#include <skein/net/detail/asio_context.hpp>

#include <chrono>
#include <ctime>

namespace skein::net {
namespace detail {

SKEIN_INLINE time_point steady_now() noexcept {
    return time_point(
        std::chrono::duration_cast<duration>(std::chrono::steady_clock::now().time_since_epoch()));
}

SKEIN_INLINE task<void> settle(asio::io_context* io) {
    for (int idle = 0, n = 0; idle < 16 && n < 10'000; ++n) {
        idle = io->poll() != 0 ? 0 : idle + 1;
        auto others = yield();
        co_await others;
    }
}

} // namespace detail

SKEIN_INLINE real_loop::real_loop()
    : loop(detail::steady_now()), context_(std::make_unique<detail::asio_context>()) {}

SKEIN_INLINE real_loop::~real_loop() {
    if (try_current() == nullptr) run(detail::settle(&context_->io));
}

SKEIN_INLINE time_point real_loop::coarse_now() noexcept {
    timespec t{};
    ::clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
    return time_point(std::chrono::seconds(t.tv_sec) + std::chrono::nanoseconds(t.tv_nsec));
}

SKEIN_INLINE time_point real_loop::read_clock() noexcept { return detail::steady_now(); }

SKEIN_INLINE void real_loop::poll(std::optional<time_point> until, bool may_block) {
    // One handler at a time: what it wakes runs before the next, and Asio asks the kernel only
    // when none is left.
    auto& io = context_->io;
    if (!may_block) {
        io.poll_one();
    } else if (!until) {
        io.run_one();
    } else {
        io.run_one_until(std::chrono::steady_clock::time_point(until->time_since_epoch()));
    }
}

SKEIN_INLINE void real_loop::notify() noexcept {
    asio::post(context_->io, [] {});
}

} // namespace skein::net
