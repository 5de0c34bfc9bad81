// SPDX-License-Identifier: Apache-2.0
#pragma once
// departures: replies that go through the store before they leave. Plain calls that keep the loop to
// themselves let them leave first, as replies in messages do; but not those that wait for room.
//
//     departures leaving;
//     departures::place mine(leaving);               // until it has left
//     if (leaving.has_any()) {                       // before the next call keeps the loop
//         auto gone = leaving.wait();
//         co_await gone;
//     }

#include <skein/core/event.hpp>
#include <skein/core/task.hpp>
#include <skein/core/time.hpp>

#include <chrono>
#include <cstdint>
#include <set>
#include <utility>

namespace skein::rt::detail {

/// On one loop.
class departures {
public:
    departures() = default;
    departures(const departures&) = delete;
    departures& operator=(const departures&) = delete;

    /// One of them. The departures must outlive it.
    class place {
    public:
        explicit place(departures& of) : of_(&of), number_(++of.last_) { of.open_.insert(number_); }
        place(place&& other) noexcept
            : of_(std::exchange(other.of_, nullptr)), number_(other.number_) {}
        place& operator=(place&&) = delete;
        ~place() {
            if (of_ != nullptr) of_->has_left(number_);
        }

    private:
        departures* of_;
        std::uint64_t number_;
    };

    /// Some have not left, and none is known to wait for room.
    [[nodiscard]] bool has_any() const noexcept {
        return !open_.empty() && *open_.begin() != waits_;
    }
    /// Suspends until those that are there now have left. One that takes longer than this waits for
    /// room: from then on nobody waits for it, nor for those behind it. Of one task at a time.
    ///   errors  cancelled
    [[nodiscard]] task<void> wait() {
        if (!has_any()) co_return;
        until_ = last_;
        have_left_.reset();
        auto leaving = have_left_.wait_for(patience);
        if (!co_await leaving) waits_ = *open_.begin();
    }

    static constexpr time_span patience = std::chrono::milliseconds(500);

private:
    void has_left(std::uint64_t number) noexcept {
        open_.erase(number);
        if (open_.empty() || *open_.begin() > until_) have_left_.set();
    }

    std::set<std::uint64_t> open_;
    std::uint64_t last_ = 0, until_ = 0;
    std::uint64_t waits_ = 0; ///< this one, for room; 0: none
    event have_left_;
};

} // namespace skein::rt::detail
