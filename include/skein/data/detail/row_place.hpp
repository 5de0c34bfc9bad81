// SPDX-License-Identifier: Apache-2.0
#pragma once
// Where a thread is with its rows, for others to look at: so that a row that does not end has a name.

#include <atomic>
#include <cstdint>

namespace skein::data::detail {

/// Which of these numbers belong together does not matter: they become a line for people.
struct row_place {
    std::atomic<bool> busy{false};
    std::atomic<std::uint64_t> rows{0}; ///< begun; the same number as before: the same row
    std::atomic<std::uint64_t> sample{0};
    std::atomic<std::uint32_t> step{0}; ///< 0: reads its source; n + 1: in operator n

    void begin(std::uint64_t of) noexcept {
        sample.store(of, std::memory_order_relaxed);
        step.store(0, std::memory_order_relaxed);
        rows.fetch_add(1, std::memory_order_relaxed);
    }
};

/// Of this thread; null: nobody looks.
inline thread_local row_place* place_of_row = nullptr;

} // namespace skein::data::detail
