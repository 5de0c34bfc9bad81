// SPDX-License-Identifier: Apache-2.0
#pragma once
// The blocks of a link's window.

#include <algorithm>
#include <cstring>
#include <utility>

namespace skein::net::detail {

SKEIN_INLINE std::byte* link_window::grab(std::size_t n) {
    if (blocks_.empty() || blocks_.back().capacity - blocks_.back().used < n) {
        block fresh;
        if (spare_.capacity >= n) {
            fresh = std::exchange(spare_, block());
            fresh.used = 0;
        } else {
            fresh.capacity = std::max(n, block_bytes);
            fresh.data = std::make_unique_for_overwrite<std::byte[]>(fresh.capacity);
        }
        blocks_.push_back(std::move(fresh));
    }
    block& last = blocks_.back();
    std::byte* const at = last.data.get() + last.used;
    last.used += n;
    return at;
}

SKEIN_INLINE std::byte* link_window::write(const header& h, std::size_t stored) {
    std::byte* const to = grab(header_bytes + stored);
    store_le(to, h.length);
    store_le(to + 4, h.kind);
    store_le(to + 6, h.flags);
    store_le(to + 8, h.id);
    return to + header_bytes;
}

SKEIN_INLINE link_window::header link_window::read(const std::byte* from) noexcept {
    header h;
    h.length = load_le<std::uint32_t>(from);
    h.kind = load_le<std::uint16_t>(from + 4);
    h.flags = load_le<std::uint16_t>(from + 6);
    h.id = load_le<std::uint64_t>(from + 8);
    return h;
}

SKEIN_INLINE void link_window::count(std::size_t body) noexcept {
    ++pushed_;
    bytes_ += header_bytes + body;
    pending_bytes_ += header_bytes + body;
}

SKEIN_INLINE void link_window::push(std::uint16_t kind, std::uint16_t flags, std::uint64_t id,
                                    byte_span head, byte_span body) {
    const std::size_t bytes = head.size() + body.size();
    std::byte* const to = write({static_cast<std::uint32_t>(bytes), kind, flags, id}, bytes);
    if (!head.empty()) std::memcpy(to, head.data(), head.size());
    if (!body.empty()) std::memcpy(to + head.size(), body.data(), body.size());
    count(bytes);
}

SKEIN_INLINE void link_window::push(std::uint16_t kind, std::uint16_t flags, std::uint64_t id,
                                    shared_body body) {
    const std::size_t bytes = body->size();
    large_.push_back(std::move(body));
    (void)write({static_cast<std::uint32_t>(bytes), kind,
                 static_cast<std::uint16_t>(flags | large_flag), id},
                0);
    count(bytes);
}

/// The bytes of the message at c, which must exist; steps over the end of a block.
SKEIN_INLINE const std::byte* link_window::at(cursor& c) const noexcept {
    for (;;) {
        const block& b = blocks_[static_cast<std::size_t>(c.block - first_block_)];
        if (c.at < b.used) return b.data.get() + c.at;
        ++c.block;
        c.at = 0;
    }
}

SKEIN_INLINE void link_window::all_handed() noexcept {
    handed_ = pushed_;
    pending_bytes_ = 0;
    next_.large = large_.size();
    next_.block = first_block_ + blocks_.size() - 1;
    next_.at = blocks_.back().used;
}

SKEIN_INLINE link_window::entry link_window::hand_next() {
    const std::byte* const from = at(next_);
    const header h = read(from);
    const bool large = (h.flags & large_flag) != 0;
    entry e;
    e.kind = h.kind;
    e.flags = h.flags & static_cast<std::uint16_t>(~large_flag);
    e.id = h.id;
    if (large) {
        e.large = large_[next_.large++];
        e.body = *e.large;
    } else {
        e.body = byte_span(from + header_bytes, h.length);
    }
    next_.at += header_bytes + (large ? 0 : h.length);
    ++handed_;
    pending_bytes_ -= header_bytes + h.length;
    return e;
}

SKEIN_INLINE void link_window::rewind() noexcept {
    next_ = front_;
    handed_ = acknowledged_;
    pending_bytes_ = bytes_;
}

SKEIN_INLINE bool link_window::acknowledge(std::uint64_t count) noexcept {
    if (!can_acknowledge(count)) return false;
    for (; acknowledged_ < count; ++acknowledged_) {
        const header h = read(at(front_));
        const bool large = (h.flags & large_flag) != 0;
        if (large) {
            large_.pop_front();
            --next_.large;
        }
        front_.at += header_bytes + (large ? 0 : h.length);
        bytes_ -= header_bytes + h.length;
    }
    drop_blocks();
    return true;
}

/// Blocks before the oldest message go; one is kept for the next.
SKEIN_INLINE void link_window::drop_blocks() noexcept {
    while (!blocks_.empty()) {
        block& first = blocks_.front();
        const bool passed = front_.block > first_block_ || front_.at >= first.used;
        if (!passed) return;
        if (blocks_.size() == 1) { // nothing is kept: begin again at its front
            first.used = 0;
            front_.at = next_.at = 0;
            front_.block = next_.block = first_block_;
            if (first.capacity > block_bytes) blocks_.clear();
            return;
        }
        if (first.capacity == block_bytes) spare_ = std::move(first);
        blocks_.pop_front();
        ++first_block_;
        if (front_.block < first_block_) front_ = {first_block_, 0, 0};
        if (next_.block < first_block_) next_ = {first_block_, 0, next_.large};
    }
}

SKEIN_INLINE void link_window::clear() noexcept {
    blocks_.clear();
    large_.clear();
    spare_ = block();
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
