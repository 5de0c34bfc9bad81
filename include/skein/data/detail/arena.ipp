// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/data/arena.hpp>.

#include <skein/core/error.hpp>

#include <algorithm>
#include <bit>
#include <new>

namespace skein::data {

SKEIN_INLINE void arena::release::operator()(std::byte* memory) const noexcept {
    ::operator delete(memory, std::align_val_t{alignment});
}

SKEIN_INLINE std::byte* arena::allocate(std::size_t size) {
    const auto rounded = (size + alignment - 1) / alignment * alignment;
    if (rounded < size) throw std::bad_alloc();
    // The first block from here on that has room.
    while (now_ < blocks_.size() && blocks_[now_].size - at_ < rounded) {
        now_ += 1;
        at_ = 0;
    }
    if (now_ == blocks_.size()) {
        const auto wanted =
            std::max({rounded, first_block, blocks_.empty() ? largest_ : blocks_.back().size});
        blocks_.push_back({std::unique_ptr<std::byte, release>(static_cast<std::byte*>(
                               ::operator new(wanted, std::align_val_t{alignment}))),
                           wanted});
    }
    auto* const given = blocks_[now_].memory.get() + at_;
    at_ += rounded;
    used_ += rounded;
    return given;
}

SKEIN_INLINE std::size_t arena::size_class(std::size_t size) noexcept {
    const auto step = std::max(std::bit_floor(size) / 8, alignment);
    return (size + step - 1) / step * step;
}

SKEIN_INLINE void arena::reset() noexcept {
    // Blocks that were too small for a row would be kept for ever, one for each larger row.
    if (blocks_.size() > 1) {
        largest_ = std::max(largest_, size_class(used_));
        blocks_.clear();
    }
    now_ = 0;
    at_ = 0;
    used_ = 0;
}

SKEIN_INLINE std::size_t arena::reserved() const noexcept {
    std::size_t sum = 0;
    for (const auto& each : blocks_) sum += each.size;
    return sum;
}

SKEIN_INLINE arena*& arena::of_thread() noexcept {
    static thread_local arena* here = nullptr;
    return here;
}

SKEIN_INLINE arena& arena::current() {
    if (auto* const here = of_thread()) return *here;
    throw error(errc::usage, "rows are made outside a pipeline: this thread has no arena")
        .with_hint("call it in a map of a pipeline, or make a data::arena and a data::arena_scope");
}

SKEIN_INLINE arena_scope::arena_scope(arena& memory) noexcept : outer_(arena::of_thread()) {
    arena::of_thread() = &memory;
}
SKEIN_INLINE arena_scope::~arena_scope() { arena::of_thread() = outer_; }

} // namespace skein::data
