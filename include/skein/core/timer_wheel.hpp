// SPDX-License-Identifier: Apache-2.0
#pragma once
// Timers: a hierarchical wheel with a tick of one nanosecond, so it is exact and both set and
// cancel cost O(1), however many calls carry a deadline.
//
// A timer lies at the level of the highest 6-bit digit in which its time differs from the wheel's
// time. It cascades to lower levels as time reaches its slot, at most ten times, and fires from
// level zero, where a slot is one nanosecond. Occupancy bit maps find the next slot without
// stepping. Source: Varghese, Lauck, "Hashed and hierarchical timing wheels", SOSP 1987, scheme 6.

#include <skein/core/intrusive_list.hpp>
#include <skein/core/time.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <optional>

namespace skein {

/// One timer. Derive from it and pass what to do; it is called on the loop's thread, once per set.
/// Destroying or cancelling a timer that is set takes it back.
class timer_node : public list_node<timer_node> {
public:
    explicit timer_node(void (*expired)(timer_node&)) noexcept : expired_(expired) {}

    [[nodiscard]] bool is_set() const noexcept { return is_linked(); }
    [[nodiscard]] time_point when() const noexcept { return when_; }
    void cancel() noexcept { unlink(); }

private:
    friend class timer_wheel;
    void (*expired_)(timer_node&);
    time_point when_{};
};

/// The timers of one loop. Timers of the same nanosecond fire in a fixed order.
class timer_wheel {
public:
    explicit timer_wheel(time_point start = {}) noexcept : now_(ticks(start)) {}

    /// Sets (or moves) a timer. A time not after the wheel's fires at the next advance.
    void set(timer_node& timer, time_point when) noexcept {
        timer.unlink();
        timer.when_ = when;
        place(timer);
    }

    /// When to look again, or nothing: the time of the earliest timer, or an earlier one when many
    /// lie close together. At such a time they move to lower levels, so that it comes closer.
    [[nodiscard]] std::optional<time_point> next() noexcept {
        if (!due_.empty()) return time_point(duration(static_cast<std::int64_t>(now_)));
        for (std::size_t level = 0; level < levels; ++level) {
            while (occupied_[level] != 0) {
                const auto slot = static_cast<std::size_t>(std::countr_zero(occupied_[level]));
                auto& list = slots_[level][slot];
                if (list.empty()) { // its timers were cancelled
                    occupied_[level] &= ~(std::uint64_t{1} << slot);
                    continue;
                }
                time_point earliest = time_point::max();
                int seen = 0;
                const bool all = list.for_each_while([&](timer_node& t) {
                    earliest = std::min(earliest, t.when_);
                    return ++seen < most_looked_at;
                });
                if (all) return earliest;
                return time_point(duration(static_cast<std::int64_t>(start_of(level, slot))));
            }
        }
        return std::nullopt;
    }

    /// Moves time forward and fires what is due. Timers set by a fired timer for a time that is not
    /// after `to` fire in the same call.
    void advance(time_point to) {
        const std::uint64_t target = std::max(now_, ticks(to));
        for (;;) {
            while (!due_.empty()) {
                auto& timer = due_.pop_front();
                timer.expired_(timer);
            }
            const auto slot = first_slot(target);
            if (!slot) break;
            now_ = slot->start;
            intrusive_list<timer_node, timer_node> taken;
            taken.splice_back(slots_[slot->level][slot->index]);
            while (!taken.empty()) place(taken.pop_front());
        }
        now_ = target;
    }

private:
    static constexpr std::size_t levels = 11;
    static constexpr unsigned bits = 6;
    static constexpr int most_looked_at = 64; ///< in a slot, by next()
    struct position {
        std::size_t level, index;
        std::uint64_t start;
    };

    static std::uint64_t ticks(time_point t) noexcept {
        return static_cast<std::uint64_t>(std::max<std::int64_t>(0, t.time_since_epoch().count()));
    }

    void place(timer_node& timer) noexcept {
        const std::uint64_t when = ticks(timer.when_);
        if (when <= now_) {
            due_.push_back(timer);
            return;
        }
        const auto highest = static_cast<unsigned>(63 - std::countl_zero(when ^ now_));
        const std::size_t level = highest / bits;
        const std::size_t index = (when >> (bits * level)) & 63;
        slots_[level][index].push_back(timer);
        occupied_[level] |= std::uint64_t{1} << index;
    }

    [[nodiscard]] std::uint64_t start_of(std::size_t level, std::size_t index) const noexcept {
        const unsigned shift = bits * static_cast<unsigned>(level);
        const unsigned above = shift + bits;
        const std::uint64_t high = above >= 64 ? 0 : (now_ >> above) << above;
        return high | (std::uint64_t{index} << shift);
    }

    /// The earliest occupied slot that starts at or before target, now empty in the bit map.
    std::optional<position> first_slot(std::uint64_t target) noexcept {
        for (std::size_t level = 0; level < levels; ++level) {
            if (occupied_[level] == 0) continue;
            const auto index = static_cast<std::size_t>(std::countr_zero(occupied_[level]));
            const std::uint64_t start = start_of(level, index);
            if (start > target) return std::nullopt;
            occupied_[level] &= ~(std::uint64_t{1} << index);
            return position{level, index, start};
        }
        return std::nullopt;
    }

    std::uint64_t now_;
    std::array<std::uint64_t, levels> occupied_{};
    std::array<std::array<intrusive_list<timer_node, timer_node>, 64>, levels> slots_;
    intrusive_list<timer_node, timer_node> due_;
};

} // namespace skein
