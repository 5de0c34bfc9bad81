// SPDX-License-Identifier: Apache-2.0
#pragma once
// Memory of modelled devices: who owns it, until when it lives, and what has touched it.
//
// Every stream, and every thread of the host, counts its own work. What is known to have ended
// before is a vector of such counts (a vector clock): it passes from a stream to an event, from an
// event to a stream or the host. Two touches of the same bytes, one of which writes, of which
// neither knows the other, are a race in every order in which the streams may run; so it is found
// when the work is submitted, whatever the order of this seed.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace skein::sim::detail {

/// What is known to have ended: a count for each stream and thread.
class vector_clock {
public:
    [[nodiscard]] std::uint64_t at(std::size_t who) const noexcept {
        return who < ticks_.size() ? ticks_[who] : 0;
    }
    std::uint64_t advance(std::size_t who) {
        if (ticks_.size() <= who) ticks_.resize(who + 1);
        return ++ticks_[who];
    }
    void join(const vector_clock& other) {
        if (ticks_.size() < other.ticks_.size()) ticks_.resize(other.ticks_.size());
        for (std::size_t i = 0; i < other.ticks_.size(); ++i)
            ticks_[i] = std::max(ticks_[i], other.ticks_[i]);
    }

private:
    std::vector<std::uint64_t> ticks_;
};

/// One piece of work as memory sees it.
struct modelled_work {
    std::string what;    ///< for people
    int device = 0;      ///< negative: the host
    std::size_t who = 0; ///< whose count `tick` is of
    std::uint64_t tick = 0;
    const vector_clock* knows = nullptr;
};

/// All blocks that were ever allocated. What is released stays, as poison, until the model ends: so
/// a late use is found and no address comes twice.
class modelled_memory {
public:
    modelled_memory(int devices, std::size_t bytes_each)
        : bytes_each_(bytes_each), used_(static_cast<std::size_t>(devices)) {}

    static constexpr int pinned = -1; ///< instead of a device

    /// Null: the device is full.
    void* allocate(int device, std::size_t bytes);
    /// False: nothing of this model begins there, or not any more.
    bool release(void* begin, bool is_pinned, const vector_clock& host_knows);
    void touch(const void* at, std::size_t bytes, bool writes, const modelled_work& by);
    [[nodiscard]] bool is_pageable(const void* at) const { return find(at) == nullptr; }

    [[nodiscard]] std::size_t free_bytes(int device) const {
        return bytes_each_ - used_[static_cast<std::size_t>(device)];
    }
    [[nodiscard]] std::size_t total_bytes() const noexcept { return bytes_each_; }

    /// A law that was broken, in words. Kept for whoever asks.
    void complain(std::string what);
    [[nodiscard]] const std::vector<std::string>& complaints() const noexcept {
        return complaints_;
    }

private:
    struct access {
        std::size_t first, last; // bytes [first, last)
        bool writes;
        std::size_t who;
        std::uint64_t tick;
        std::string what;
    };
    struct block {
        std::unique_ptr<std::byte[]> bytes;
        std::size_t size = 0;
        int device = 0;
        bool is_live = true;
        std::vector<access> seen;
    };
    [[nodiscard]] const block* find(const void* at) const;

    std::size_t bytes_each_;
    std::vector<std::size_t> used_;
    std::map<const std::byte*, block> blocks_;
    std::vector<std::string> complaints_;
};

} // namespace skein::sim::detail

#if SKEIN_HEADER_ONLY
#include <skein/sim/detail/modelled_memory.ipp>
#endif
