// SPDX-License-Identifier: Apache-2.0
#pragma once
// claims: memory that a worker and its driver on the same host share, where the worker notes each
// call before it runs it. So the driver knows exactly what a dead worker has begun, and can take
// back what has been sent and not begun, without the worker's help: a call that waits behind a long
// one is cancelled or moved at once.
//
//     claims page(shared_memory::create(claims::bytes));   // driver; the memory goes to the worker
//     claims page(boot->memory);                           // worker
//     // worker, for each call in the order in which they were sent
//     if (page.begin()) run(call);
//     if (page.take_back(n)) send_elsewhere(n);  // driver, the n-th call that it sent: 1, 2, ...
//
// Entry n mod `entries` holds 2n when call n has begun and 2n + 1 when it was taken back: one
// exchange on the worker's side, one compare-and-swap on the driver's, and whoever comes first has
// it. Nothing is ever cleared, so in the ordinary course the driver touches no line of it.

#include <skein/proc/shared_memory.hpp>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace skein::proc {

/// One end of such a page. Copies share the page and each count for themselves: one per side.
class claims {
public:
    /// So many calls after the last one begun can be taken back.
    static constexpr std::uint64_t entries = 4096;

    /// No page: everything that was sent may have begun.
    claims() noexcept = default;
    ///   errors  malformed: the memory is not of the size of a page of claims
    explicit claims(shared_memory in);

    explicit operator bool() const noexcept { return page_ != nullptr; }

    // The worker's side.

    /// The next call is about to run. False: it was taken back, leave it out.
    [[nodiscard]] bool begin() noexcept {
        if (!page_) return true;
        const std::uint64_t n = ++last_;
        const auto before = page_->entry[n % entries].exchange(2 * n, std::memory_order_acq_rel);
        page_->begun.store(n, std::memory_order_release);
        return before != 2 * n + 1 && !page_->closed.load(std::memory_order_acquire);
    }

    // The driver's side.

    /// The last one that has begun; 0: none, or it is not known.
    [[nodiscard]] std::uint64_t last_begun() const noexcept {
        return page_ ? page_->begun.load(std::memory_order_acquire) : 0;
    }
    /// True: call n is over or under way. False: it was not when this was asked.
    [[nodiscard]] bool has_begun(std::uint64_t n) const noexcept {
        if (!page_) return true;
        const auto now = page_->entry[n % entries].load(std::memory_order_acquire);
        if (now == 2 * n || now == 2 * n + 1) return now == 2 * n;
        return n <= page_->begun.load(std::memory_order_acquire);
    }
    /// No call begins from now on; `sent` is the last one. A worker that lives on behind a
    /// broken connection only passes them by; what it has passed by may be told as begun later.
    void close(std::uint64_t sent) noexcept {
        if (!page_) return;
        page_->closed.store(true, std::memory_order_release);
        // The worker cannot get past these without having seen that.
        const auto first = page_->begun.load(std::memory_order_acquire) + 1;
        for (auto n = first; n <= sent && n - first < entries; ++n) (void)take_back(n);
    }
    /// True: call n will not run; it was sent and had not begun.
    [[nodiscard]] bool take_back(std::uint64_t n) noexcept {
        if (!page_) return false;
        const auto begun = page_->begun.load(std::memory_order_acquire);
        // Further ahead the entry still belongs to an earlier call.
        if (n <= begun || n - begun > entries) return false;
        auto& entry = page_->entry[n % entries];
        auto now = entry.load(std::memory_order_acquire);
        return now < 2 * n &&
               entry.compare_exchange_strong(now, 2 * n + 1, std::memory_order_acq_rel);
    }

private:
    struct page {
        alignas(64) std::atomic<std::uint64_t> begun{0};
        alignas(64) std::atomic<bool> closed{false};
        alignas(64) std::array<std::atomic<std::uint64_t>, entries> entry{};
    };
    static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "shared by processes");

    shared_memory memory_;
    page* page_ = nullptr; ///< in memory_
    std::uint64_t last_ = 0;

public:
    static constexpr std::size_t bytes = sizeof(page);
};

} // namespace skein::proc

#if SKEIN_HEADER_ONLY
#include <skein/proc/detail/claims.ipp>
#endif
