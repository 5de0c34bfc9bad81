// SPDX-License-Identifier: Apache-2.0
#pragma once
// The heap of events, and what time does between them.

#include <skein/core/error.hpp>

#include <algorithm>

#include <fmt/core.h>

namespace skein::sim {

SKEIN_INLINE loop::loop(std::uint64_t seed) : seed_(seed), random_(seed) {}
SKEIN_INLINE loop::~loop() = default;

SKEIN_INLINE duration loop::draw_delay(duration least, duration most) {
    const auto width = static_cast<std::uint64_t>((most - least).count()) + 1;
    return least + duration(static_cast<std::int64_t>(random_.below(width)));
}

SKEIN_INLINE std::optional<duration> loop::simulated_work_time() {
    return draw_delay(std::chrono::microseconds(10), std::chrono::milliseconds(2));
}

SKEIN_INLINE std::chrono::milliseconds loop::wall() {
    return std::chrono::duration_cast<std::chrono::milliseconds>(elapsed());
}

SKEIN_INLINE void loop::at(time_point when, unique_function<void()> call) {
    event_item e;
    e.when = std::max(when, virtual_);
    e.key = random_.next();
    e.number = ++scheduled_;
    e.call = std::move(call);
    heap_.push_back(std::move(e));
    std::push_heap(heap_.begin(), heap_.end(), later);
}

SKEIN_INLINE void loop::after(duration delay, unique_function<void()> call) {
    at(skein::deadline_after(virtual_, delay), std::move(call));
}

SKEIN_INLINE void loop::trace(std::uint64_t value) noexcept {
    tell("value", value);
    fold(value);
}

SKEIN_INLINE void loop::tell(std::string_view what, std::uint64_t value) noexcept {
    if (!sink_) return;
    sink_(fmt::format("{} {} at {} draws {}", what, value, elapsed().count(), draws()));
}

SKEIN_INLINE void loop::fold(std::uint64_t value) noexcept {
    std::uint64_t x = trace_ ^ (value + 0x9e3779b97f4a7c15ULL + (trace_ << 6) + (trace_ >> 2));
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9ULL;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebULL;
    trace_ = x ^ (x >> 31);
}

SKEIN_INLINE void loop::set_budget(std::uint64_t most_events, duration most_time) noexcept {
    most_events_ = most_events;
    most_time_ = most_time;
}

SKEIN_INLINE void loop::poll(std::optional<time_point> until, bool may_block) {
    if (++turns_ > 64 * most_events_ || ran_ > most_events_ || elapsed() > most_time_) {
        throw error(errc::timeout,
                    fmt::format("simulated world of seed {} exceeds its budget after {} "
                                "events, {:.3f} s",
                                seed_, ran_, to_seconds(elapsed())));
    }
    virtual_ += duration(100); // work takes time: a task that only yields still gets older
    const bool busy = run_parts() || !may_block;
    const bool have = !heap_.empty();
    if (busy) {
        if (have && heap_.front().when <= virtual_) run_next();
        return;
    }
    if (const auto part = next_of_parts(); part && (!until || *part < *until)) until = part;
    if (have && (!until || heap_.front().when <= *until)) {
        virtual_ = std::max(virtual_, heap_.front().when);
        run_next();
    } else if (until) {
        virtual_ = std::max(virtual_, *until);
        tell("timer", turns_);
        fold(static_cast<std::uint64_t>(virtual_.time_since_epoch().count()));
    } else {
        throw error(errc::internal,
                    fmt::format("simulated world of seed {} is stuck at {:.6f} s: a task "
                                "waits, but no event and no timer is left",
                                seed_, to_seconds(elapsed())));
    }
}

/// A turn of each part that has work, beginning with any of them: nobody is always the first.
SKEIN_INLINE bool loop::run_parts() {
    const auto is_ready = [](inner_loop* one) { return one->is_ready(); };
    if (std::none_of(parts_.begin(), parts_.end(), is_ready)) return false;
    const std::size_t count =
        parts_.size(); // one that is added meanwhile has its turn the next time
    const std::size_t first = count > 1 ? random_.below(count) : 0;
    for (std::size_t i = 0; i < count && !parts_.empty();
         ++i) { // one may end in the turn of another
        auto* const one = parts_[(first + i) % parts_.size()];
        if (one->is_ready()) one->run_turn();
    }
    return true;
}

SKEIN_INLINE std::optional<time_point> loop::next_of_parts() noexcept {
    std::optional<time_point> next;
    for (auto* part : parts_) {
        const auto when = part->next_turn();
        if (when && (!next || *when < *next)) next = when;
    }
    return next;
}

SKEIN_INLINE bool loop::later(const event_item& a, const event_item& b) noexcept {
    if (a.when != b.when) return a.when > b.when;
    if (a.key != b.key) return a.key > b.key;
    return a.number > b.number;
}

SKEIN_INLINE void loop::run_next() {
    std::pop_heap(heap_.begin(), heap_.end(), later);
    event_item e = std::move(heap_.back());
    heap_.pop_back();
    ++ran_;
    tell("event", e.number);
    fold(static_cast<std::uint64_t>(e.when.time_since_epoch().count()) ^ (e.number << 1));
    e.call();
}

} // namespace skein::sim
