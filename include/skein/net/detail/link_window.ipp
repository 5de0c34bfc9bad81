// SPDX-License-Identifier: Apache-2.0
#pragma once
// The blocks of a link's window.

#include <algorithm>
#include <utility>

namespace skein::net::detail {

/// Begins another block.
SKEIN_INLINE void link_window::more(std::size_t n) {
    block fresh;
    if (spare_.capacity >= n) {
        fresh = std::exchange(spare_, block());
    } else {
        fresh.capacity = std::max(n, block_bytes);
        fresh.data = std::make_unique_for_overwrite<std::byte[]>(fresh.capacity);
    }
    if (!blocks_.empty()) blocks_.back().used = blocks_.back().capacity - free_;
    end_ = fresh.data.get();
    free_ = fresh.capacity;
    blocks_.push_back(std::move(fresh));
}

SKEIN_INLINE std::size_t link_window::used(std::size_t index) const noexcept {
    const block& b = blocks_[index];
    return index + 1 == blocks_.size() ? b.capacity - free_ : b.used;
}

/// The next message is the first that is not handed.
SKEIN_INLINE void link_window::begin_pending() noexcept {
    if (has_pending()) return;
    next_ = {first_block_, 0, large_.size()};
    if (blocks_.empty()) return;
    next_.block = first_block_ + blocks_.size() - 1;
    next_.at = blocks_.back().capacity - free_;
}

SKEIN_INLINE void link_window::push(std::uint16_t kind, std::uint16_t flags, std::uint64_t id,
                                    byte_span head, byte_span body) {
    begin_pending();
    copy(kind, flags, id, head, body);
    pending_bytes_ += header_bytes + head.size() + body.size();
}

SKEIN_INLINE void link_window::push(std::uint16_t kind, std::uint16_t flags, std::uint64_t id,
                                    shared_body body) {
    const std::size_t bytes = body->size();
    begin_pending();
    large_.push_back(std::move(body));
    (void)write(static_cast<std::uint32_t>(bytes), kind,
                static_cast<std::uint16_t>(flags | large_flag), id, 0);
    ++pushed_;
    bytes_ += header_bytes + bytes;
    pending_bytes_ += header_bytes + bytes;
}

/// The bytes of the message at c, which must exist; steps over the end of a block.
SKEIN_INLINE const std::byte* link_window::at(cursor& c) const noexcept {
    for (;;) {
        const auto index = static_cast<std::size_t>(c.block - first_block_);
        if (c.at < used(index)) return blocks_[index].data.get() + c.at;
        ++c.block;
        c.at = 0;
    }
}

SKEIN_INLINE link_window::entry link_window::hand_next() {
    const std::byte* const from = at(next_);
    const auto length = load_le<std::uint32_t>(from);
    entry e;
    e.kind = load_le<std::uint16_t>(from + 4);
    e.flags = load_le<std::uint16_t>(from + 6);
    e.id = load_le<std::uint64_t>(from + 8);
    const bool large = (e.flags & large_flag) != 0;
    e.flags &= static_cast<std::uint16_t>(~large_flag);
    if (large) {
        e.large = large_[next_.large++];
        e.body = *e.large;
    } else {
        e.body = byte_span(from + header_bytes, length);
    }
    next_.at += header_bytes + (large ? 0 : length);
    ++handed_;
    pending_bytes_ -= header_bytes + length;
    return e;
}

SKEIN_INLINE void link_window::rewind() noexcept {
    next_ = front_;
    handed_ = acknowledged_;
    pending_bytes_ = bytes_;
}

SKEIN_INLINE bool link_window::acknowledge(std::uint64_t count) noexcept {
    if (!can_acknowledge(count)) return false;
    while (acknowledged_ < count) {
        const auto index = static_cast<std::size_t>(front_.block - first_block_);
        const std::byte* const data = blocks_[index].data.get();
        const std::size_t end = used(index);
        for (; acknowledged_ < count && front_.at < end; ++acknowledged_) {
            const auto length = load_le<std::uint32_t>(data + front_.at);
            const bool large = (load_le<std::uint16_t>(data + front_.at + 6) & large_flag) != 0;
            if (large) {
                large_.pop_front();
                --next_.large;
            }
            front_.at += header_bytes + (large ? 0 : length);
            bytes_ -= header_bytes + length;
        }
        if (front_.at >= end && index + 1 < blocks_.size()) front_ = {front_.block + 1, 0, 0};
    }
    drop_blocks();
    return true;
}

/// Blocks before the oldest message go; one is kept for the next.
SKEIN_INLINE void link_window::drop_blocks() noexcept {
    while (first_block_ < front_.block) {
        block& first = blocks_.front();
        if (first.capacity == block_bytes) spare_ = std::move(first);
        blocks_.pop_front();
        ++first_block_;
    }
    if (next_.block < first_block_) next_ = {first_block_, 0, next_.large};
    if (messages() != 0 || blocks_.empty()) return;
    block& only = blocks_.back(); // nothing is kept: begin again at its front
    free_ = only.capacity;
    end_ = only.data.get();
    front_.at = next_.at = 0;
}

SKEIN_INLINE void link_window::clear() noexcept {
    blocks_.clear();
    large_.clear();
    spare_ = block();
    end_ = nullptr;
    free_ = 0;
    acknowledged_ = handed_ = pushed_;
    bytes_ = pending_bytes_ = 0;
    front_ = next_ = {first_block_, 0, 0};
}

SKEIN_INLINE std::size_t link_window::capacity() const noexcept {
    std::size_t sum = spare_.capacity;
    for (const auto& b : blocks_) sum += b.capacity;
    for (const auto& body : large_) sum += body->capacity();
    return sum;
}

} // namespace skein::net::detail
