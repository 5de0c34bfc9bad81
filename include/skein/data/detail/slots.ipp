// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/data/slots.hpp>.

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

namespace skein::data {

namespace detail {
inline constexpr std::size_t slot_alignment = 64;

SKEIN_INLINE std::size_t aligned(std::size_t bytes) noexcept {
    return (bytes + slot_alignment - 1) / slot_alignment * slot_alignment;
}
} // namespace detail

SKEIN_INLINE std::size_t row_layout::row_bytes() const noexcept {
    std::size_t sum = 0;
    for (const auto& column : columns) sum += column.size();
    return sum;
}

SKEIN_INLINE std::size_t row_layout::slot_bytes(std::uint64_t rows) const noexcept {
    std::size_t sum = 0;
    for (const auto& column : columns)
        sum += detail::aligned(column.size() * static_cast<std::size_t>(rows));
    return std::max(sum, detail::slot_alignment);
}

SKEIN_INLINE slot::slot(std::shared_ptr<const row_layout> layout, std::uint64_t rows,
                        std::byte* memory)
    : layout_(std::move(layout)), rows_(rows), memory_(memory) {
    std::size_t at = 0;
    for (const auto& column : layout_->columns) {
        begins_.push_back(at);
        at += detail::aligned(column.size() * static_cast<std::size_t>(rows));
    }
}

SKEIN_INLINE void slot::write(std::uint64_t row, const detail::cells& values) const noexcept {
    for (std::size_t i = 0; i < values.size(); ++i) {
        const auto size = values[i].size();
        if (size > 0) std::memcpy(column(i) + row * size, values[i].data, size);
    }
}

SKEIN_INLINE void slot::move_row(std::uint64_t from, std::uint64_t to) const noexcept {
    for (std::size_t i = 0; i < begins_.size(); ++i) {
        const auto size = layout_->columns[i].size();
        if (size > 0) std::memmove(column(i) + to * size, column(i) + from * size, size);
    }
}

SKEIN_INLINE slot_pool::~slot_pool() {
    for (const auto& block : free_)
        ::operator delete(block.data, std::align_val_t{detail::slot_alignment});
}

SKEIN_INLINE std::shared_ptr<slot> slot_pool::take(const std::shared_ptr<const row_layout>& layout,
                                                   std::uint64_t rows) {
    const auto size = layout->slot_bytes(rows);
    memory block{nullptr, size};
    {
        const std::lock_guard lock(mutex_);
        if (slots_ > 0 && (size > budget_ || used_ > budget_ - size)) return nullptr;
        // Blocks of another size are not worth their bytes.
        std::erase_if(free_, [&](const memory& each) {
            if (each.size == size) return false;
            ::operator delete(each.data, std::align_val_t{detail::slot_alignment});
            return true;
        });
        if (!free_.empty()) {
            block = free_.back();
            free_.pop_back();
        } else {
            block.data = static_cast<std::byte*>(
                ::operator new(size, std::align_val_t{detail::slot_alignment}));
        }
        used_ += size;
        slots_ += 1;
        peak_ = std::max(peak_, used_);
    }
    const auto deleter = [pool = shared_from_this(), block](slot* made) {
        delete made;
        pool->give_back(block);
    };
    slot* made = nullptr;
    try {
        made = new slot(layout, rows, block.data);
    } catch (...) {
        give_back(block);
        throw;
    }
    return {made, deleter};
}

SKEIN_INLINE void slot_pool::give_back(memory block) noexcept {
    {
        const std::lock_guard lock(mutex_);
        used_ -= block.size;
        slots_ -= 1;
        try {
            free_.push_back(block);
        } catch (...) {
            ::operator delete(block.data, std::align_val_t{detail::slot_alignment});
        }
    }
    const std::lock_guard lock(telling_);
    if (tell_) tell_();
}

SKEIN_INLINE void slot_pool::on_return(unique_function<void()> tell) {
    const std::lock_guard lock(telling_);
    tell_ = std::move(tell);
}

SKEIN_INLINE std::size_t slot_pool::used() const {
    const std::lock_guard lock(mutex_);
    return used_;
}
SKEIN_INLINE std::size_t slot_pool::peak() const {
    const std::lock_guard lock(mutex_);
    return peak_;
}
SKEIN_INLINE std::size_t slot_pool::slots() const {
    const std::lock_guard lock(mutex_);
    return slots_;
}

} // namespace skein::data
