// SPDX-License-Identifier: Apache-2.0
#pragma once
// What memory of a modelled device finds.

#include <skein/core/config.hpp>

#include <cstring>
#include <utility>

#include <fmt/core.h>

namespace skein::sim::detail {

SKEIN_INLINE void modelled_memory::complain(std::string what) {
    if (complaints_.size() < 100) complaints_.push_back(std::move(what));
}

SKEIN_INLINE void* modelled_memory::allocate(int device, std::size_t bytes) {
    if (device != pinned) {
        if (free_bytes(device) < bytes) return nullptr;
        used_[static_cast<std::size_t>(device)] += bytes;
    }
    block made;
    made.bytes = std::make_unique<std::byte[]>(std::max<std::size_t>(bytes, 1));
    std::memset(made.bytes.get(), 0xa5, bytes); // fresh memory holds anything
    made.size = bytes;
    made.device = device;
    void* const begin = made.bytes.get();
    blocks_.emplace(made.bytes.get(), std::move(made));
    return begin;
}

SKEIN_INLINE const modelled_memory::block* modelled_memory::find(const void* at) const {
    const auto* const byte = static_cast<const std::byte*>(at);
    auto after = blocks_.upper_bound(byte);
    if (after == blocks_.begin()) return nullptr;
    const block& candidate = std::prev(after)->second;
    const auto offset = static_cast<std::size_t>(byte - candidate.bytes.get());
    return offset < std::max<std::size_t>(candidate.size, 1) ? &candidate : nullptr;
}

SKEIN_INLINE bool modelled_memory::release(void* begin, bool is_pinned,
                                           const vector_clock& host_knows) {
    const auto found = blocks_.find(static_cast<std::byte*>(begin));
    if (found == blocks_.end() || !found->second.is_live ||
        (found->second.device == pinned) != is_pinned) {
        complain("released twice, or by the wrong function");
        return false;
    }
    block& b = found->second;
    for (const access& a : b.seen) {
        if (a.tick <= host_knows.at(a.who)) continue;
        complain(fmt::format("memory released under {}, which is in flight", a.what));
        break;
    }
    if (b.device != pinned) used_[static_cast<std::size_t>(b.device)] -= b.size;
    b.is_live = false;
    std::memset(b.bytes.get(), 0xdb, b.size);
    return true;
}

SKEIN_INLINE void modelled_memory::touch(const void* at, std::size_t bytes, bool writes,
                                         const modelled_work& by) {
    if (bytes == 0) return;
    auto* const b = const_cast<block*>(find(at));
    if (b == nullptr) {
        if (by.device >= 0) complain(fmt::format("{} on memory that no device can reach", by.what));
        return;
    }
    if (!b->is_live) return complain(fmt::format("{} on memory that was released", by.what));
    if (b->device != pinned && by.device >= 0 && b->device != by.device)
        return complain(
            fmt::format("{} of device {} on memory of device {}", by.what, by.device, b->device));
    if (b->device != pinned && by.device < 0)
        return complain(fmt::format("{} by the host on memory of device {}", by.what, b->device));
    const auto first = static_cast<std::size_t>(static_cast<const std::byte*>(at) - b->bytes.get());
    const std::size_t last = first + bytes;
    if (last > b->size) return complain(fmt::format("{} beyond the end of its memory", by.what));
    for (const access& a : b->seen) {
        const bool meet = a.first < last && first < a.last && (a.writes || writes);
        const bool known = a.who == by.who ? true : a.tick <= by.knows->at(a.who);
        if (meet && !known)
            complain(fmt::format("{} and {} touch the same memory and no event is between them",
                                 a.what, by.what));
    }
    // What is ordered before a write that covers it says nothing any more.
    if (writes) {
        std::erase_if(b->seen, [&](const access& a) {
            return first <= a.first && a.last <= last &&
                   (a.who == by.who || a.tick <= by.knows->at(a.who));
        });
    }
    for (access& a : b->seen) { // the same read again
        if (a.first == first && a.last == last && a.writes == writes && a.who == by.who) {
            a.tick = by.tick;
            return;
        }
    }
    b->seen.push_back({first, last, writes, by.who, by.tick, by.what});
}

} // namespace skein::sim::detail
