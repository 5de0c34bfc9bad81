// SPDX-License-Identifier: Apache-2.0
#pragma once
// The system calls of a doorbell.

#include <climits>
#include <algorithm>
#include <ctime>

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace skein::dist {

SKEIN_INLINE void doorbell::ring_always() noexcept {
    rings.fetch_add(1, std::memory_order_seq_cst);
    auto* const word = reinterpret_cast<std::uint32_t*>(&rings);
    ::syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

SKEIN_INLINE void doorbell::sleep(std::uint32_t seen, duration longest) noexcept {
    const auto ns = std::max<std::int64_t>(longest.count(), 0);
    const std::timespec limit{static_cast<std::time_t>(ns / 1'000'000'000),
                              static_cast<long>(ns % 1'000'000'000)};
    auto* const word = reinterpret_cast<std::uint32_t*>(&rings);
    ::syscall(SYS_futex, word, FUTEX_WAIT, seen, &limit, nullptr, 0);
}

SKEIN_INLINE int this_core() noexcept { return ::sched_getcpu(); }

} // namespace skein::dist
