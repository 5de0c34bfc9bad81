// SPDX-License-Identifier: Apache-2.0
#pragma once
// Slots: the memory of batches, taken whole from one pool that counts its bytes.
//
// A slot holds the columns of one batch: each column is one block of numbers [rows, ...]. Rows are
// made in place; nothing else holds finished rows, so the pool's budget bounds how far ahead a
// loader may be. A slot goes back when the last batch or tensor over it has gone, on any thread.
//
//     auto pool = std::make_shared<data::slot_pool>(512u << 20);
//     auto slot = pool->take(layout, 64);            // null: the budget is out
//
// Next users: pinned memory (another allocation behind the same pool), padded batches (another
// layout).

#include <skein/core/function.hpp>
#include <skein/data/detail/rows.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace skein::data {

/// What rows of one data set look like: a cell per column, without values.
struct row_layout {
    detail::cells columns;

    /// Bytes of the values of one row.
    [[nodiscard]] std::size_t row_bytes() const noexcept;
    /// Bytes of a slot of so many rows.
    [[nodiscard]] std::size_t slot_bytes(std::uint64_t rows) const noexcept;
};

/// The memory of one batch. Rows are written by those to whom the loader gave them.
class slot {
public:
    slot(std::shared_ptr<const row_layout> layout, std::uint64_t rows, std::byte* memory);
    slot(const slot&) = delete;
    slot& operator=(const slot&) = delete;

    [[nodiscard]] const row_layout& layout() const noexcept { return *layout_; }
    /// Rows that fit in.
    [[nodiscard]] std::uint64_t capacity() const noexcept { return rows_; }
    /// The first value of a column: [rows, dims of its cell], without gaps, on a border of 64 bytes.
    [[nodiscard]] std::byte* column(std::size_t index) const noexcept {
        return memory_ + begins_[index];
    }
    /// Copies a row's values to their places. The row is of this layout.
    void write(std::uint64_t row, const detail::cells& values) const noexcept;
    /// Copies a row of this slot onto another one before it.
    void move_row(std::uint64_t from, std::uint64_t to) const noexcept;

private:
    std::shared_ptr<const row_layout> layout_;
    std::uint64_t rows_;
    std::byte* memory_;
    std::vector<std::size_t> begins_;
};

/// Gives out slots within a budget of bytes. Thread-safe; made by make_shared: slots keep it alive.
class slot_pool : public std::enable_shared_from_this<slot_pool> {
public:
    explicit slot_pool(std::size_t budget) : budget_(budget) {}
    slot_pool(const slot_pool&) = delete;
    slot_pool& operator=(const slot_pool&) = delete;
    ~slot_pool();

    /// A slot, or null when the budget has no room for it. One slot is always given while none is
    /// out: a budget below one batch stops nobody.
    ///   errors  std::bad_alloc
    [[nodiscard]] std::shared_ptr<slot> take(const std::shared_ptr<const row_layout>& layout,
                                             std::uint64_t rows);

    /// Called after each slot that came back, on the thread that let it go; must not throw. Empty:
    /// nobody is told any more.
    void on_return(unique_function<void()> tell);

    [[nodiscard]] std::size_t budget() const noexcept { return budget_; }
    /// Bytes that are out, the most that ever were, and slots that are out.
    [[nodiscard]] std::size_t used() const;
    [[nodiscard]] std::size_t peak() const;
    [[nodiscard]] std::size_t slots() const;

private:
    struct memory {
        std::byte* data;
        std::size_t size;
    };
    void give_back(memory block) noexcept;

    const std::size_t budget_;
    mutable std::mutex mutex_; // guards what follows
    std::vector<memory> free_; // of the size that was asked for last
    std::size_t used_ = 0, peak_ = 0, slots_ = 0;
    std::mutex telling_; // held while tell_ is called or changed
    unique_function<void()> tell_;
};

} // namespace skein::data

#if SKEIN_HEADER_ONLY
#include <skein/data/detail/slots.ipp>
#endif
