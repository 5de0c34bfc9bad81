// SPDX-License-Identifier: Apache-2.0
#pragma once
// Monotonic time, the only time that decides anything. Wall time is for logs (core/clock.hpp).
//
// A loop says what time it is: real loops read the system's monotonic clock once per turn, simulated
// loops count virtual time from zero.

#include <skein/core/config.hpp>

#include <chrono>
#include <cstdint>

namespace skein {

/// Lengths of time, in nanoseconds.
using duration = std::chrono::nanoseconds;

/// A tag for time points of loops. It has no now(): ask loop::now().
struct monotonic_clock {
    using rep = std::int64_t;
    using period = std::nano;
    using duration = skein::duration;
    using time_point = std::chrono::time_point<monotonic_clock>;
    static constexpr bool is_steady = true;
};

/// A point in the time of a loop or clock.
using time_point = monotonic_clock::time_point;

/// `from` + `length`, or the end of time where that is beyond it: a wait may be duration::max().
[[nodiscard]] constexpr time_point deadline_after(time_point from, duration length) noexcept {
    std::int64_t sum = 0;
    if (__builtin_add_overflow(from.time_since_epoch().count(), length.count(), &sum))
        return length.count() > 0 ? time_point::max() : time_point::min();
    return time_point(duration(sum));
}

/// Seconds as a double, for rates and messages.
[[nodiscard]] constexpr double to_seconds(duration d) noexcept {
    return std::chrono::duration<double>(d).count();
}

} // namespace skein
