// SPDX-License-Identifier: Apache-2.0
#pragma once
// The pieces of an outgoing queue.

#include <algorithm>

namespace skein::net::detail {

SKEIN_INLINE void raw_buffer::grow(std::size_t n) {
    const std::size_t wanted = std::max({size_ + n, capacity_ * 2, std::size_t{4096}});
    auto larger = std::make_unique_for_overwrite<std::byte[]>(wanted);
    if (size_ > 0) std::memcpy(larger.get(), data_.get(), size_);
    data_ = std::move(larger);
    capacity_ = wanted;
}

SKEIN_INLINE std::size_t out_queue::capacity() const noexcept {
    std::size_t sum = open_.capacity();
    for (const auto& p : pieces_) sum += p.owned.capacity() + p.small.capacity();
    return sum;
}

SKEIN_INLINE void out_queue::move(byte_buffer bytes) {
    if (bytes.empty()) return;
    seal();
    bytes_ += bytes.size();
    pieces_.emplace_back();
    pieces_.back().owned = std::move(bytes);
    pieces_.back().view = pieces_.back().owned;
}

SKEIN_INLINE void out_queue::share(std::shared_ptr<const byte_buffer> bytes) {
    if (bytes->empty()) return;
    seal();
    bytes_ += bytes->size();
    pieces_.emplace_back();
    pieces_.back().view = *bytes;
    pieces_.back().shared = std::move(bytes);
}

SKEIN_INLINE void out_queue::borrow(byte_span bytes) {
    if (bytes.empty()) return;
    seal();
    bytes_ += bytes.size();
    pieces_.emplace_back();
    pieces_.back().view = bytes;
}

SKEIN_INLINE void out_queue::own_last() {
    if (pieces_.empty()) return;
    auto& last = pieces_.back();
    last.owned = to_buffer(last.view);
    last.view = last.owned;
}

SKEIN_INLINE void out_queue::views(std::vector<byte_span>& into) const {
    into.clear();
    for (const auto& p : pieces_) into.push_back(p.view);
    if (open_.size() > skip_) into.push_back(open_.view().subspan(skip_));
}

SKEIN_INLINE void out_queue::consume(std::size_t n) noexcept {
    bytes_ -= n;
    while (n > 0 && !pieces_.empty()) {
        auto& first = pieces_.front();
        const std::size_t part = std::min(n, first.view.size());
        first.view = first.view.subspan(part);
        n -= part;
        if (first.view.empty()) pieces_.pop_front();
    }
    skip_ += n;
    if (skip_ == open_.size()) {
        skip_ = 0;
        if (open_.capacity() > keep_bytes) open_ = raw_buffer();
        open_.clear();
    }
}

SKEIN_INLINE void out_queue::clear() noexcept {
    pieces_.clear();
    open_ = raw_buffer();
    skip_ = bytes_ = 0;
}

SKEIN_INLINE void out_queue::seal() {
    if (open_.size() == skip_) return;
    pieces_.emplace_back();
    auto& p = pieces_.back();
    p.small = std::exchange(open_, raw_buffer());
    p.view = p.small.view().subspan(skip_);
    skip_ = 0;
}

} // namespace skein::net::detail
