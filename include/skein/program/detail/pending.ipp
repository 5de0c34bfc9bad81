// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of program/pending.hpp: how threads wait for an outcome, and are told.

#include <skein/rt/ref.hpp>

#include <chrono>
#include <utility>

#include <fmt/format.h>

namespace skein::program::detail {

SKEIN_INLINE void pending_base::wait() const {
    if (is_done()) return;
    door->refuse_inside("get()");
    std::unique_lock lock(mutex_);
    ++waiting_;
    ended_.wait(lock, [&] { return is_done(); });
    --waiting_;
}

SKEIN_INLINE bool pending_base::wait_for(duration limit) const {
    // Further than a clock counts.
    if (limit > std::chrono::hours(24 * 365)) return wait(), true;
    if (is_done()) return true;
    door->refuse_inside("wait_for()");
    std::unique_lock lock(mutex_);
    ++waiting_;
    const bool done = ended_.wait_for(lock, limit, [&] { return is_done(); });
    --waiting_;
    return done;
}

SKEIN_INLINE void pending_base::wait_within(duration limit) const {
    if (!wait_for(limit))
        throw error(errc::timeout,
                    fmt::format("{} has no outcome after {:.3g} s", fn->name, to_seconds(limit)))
            .with_hint("it goes on; .cancel() ends it, .with({.deadline = ...}) bounds it");
}

SKEIN_INLINE void pending_base::cancel(bool by_force) {
    if (by_force && fn != nullptr) rt::detail::check_force(*fn);
    if (is_done()) return;
    // Behind its own submission. What is refused ends with its session.
    (void)door->post([self = shared_from_this(), by_force] {
        if (self->call != nullptr) cancel_call(*self->call, by_force);
    });
}

SKEIN_INLINE void pending_base::fail(rt::failure why) noexcept {
    why_.emplace(std::move(why));
    finish();
}

SKEIN_INLINE void pending_base::finish() noexcept {
    // The writer has a share of this until it returns.
    const std::lock_guard lock(mutex_);
    done_.store(true, std::memory_order_release);
    if (waiting_ != 0) ended_.notify_all();
}

} // namespace skein::program::detail
