// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of spmd/memory_register.hpp.

#include <utility>

namespace skein::spmd {

SKEIN_INLINE task<view> memory_register::read() { co_return newest_; }

SKEIN_INLINE task<swap_result> memory_register::compare_and_swap(std::uint64_t generation,
                                                                 view next) {
    swap_result how;
    how.swapped = newest_.generation <= generation && next.generation == generation + 1;
    if (how.swapped) {
        newest_ = std::move(next);
        changed_.wake_all();
    }
    how.now = newest_;
    co_return how;
}

SKEIN_INLINE task<view> memory_register::watch(std::uint64_t after) {
    while (newest_.generation <= after) {
        auto changed = changed_.wait();
        co_await changed;
    }
    co_return newest_;
}

SKEIN_INLINE task<coordinator_place> memory_register::claim(coordinator_place me) {
    if (coordinator_.id == 0 || coordinator_.id == me.id) {
        coordinator_ = std::move(me);
        changed_.wake_all();
    }
    co_return coordinator_;
}

SKEIN_INLINE task<coordinator_place> memory_register::watch_coordinator(coordinator_place known) {
    while (coordinator_ == known) {
        auto changed = changed_.wait();
        co_await changed;
    }
    co_return coordinator_;
}

SKEIN_INLINE task<void> memory_register::resign() {
    coordinator_ = {};
    changed_.wake_all();
    co_return;
}

} // namespace skein::spmd
