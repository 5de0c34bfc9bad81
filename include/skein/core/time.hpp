// SPDX-License-Identifier: Apache-2.0
#pragma once
// Monotonic time, the only time that decides anything. Wall time is for logs (core/clock.hpp).
//
// A loop says what time it is: real loops read the system's monotonic clock once per turn,
// simulated loops count virtual time from zero.
//
//     co_await skein::sleep_for(1.5s);
//     // for ever, as every length that is longer than 292 years
//     how.deadline = std::chrono::hours::max();

#include <skein/core/config.hpp>

#include <chrono>
#include <concepts>
#include <cstdint>
#include <type_traits>

namespace skein {

/// Lengths of time, in nanoseconds.
using duration = std::chrono::nanoseconds;

namespace detail {

/// Throws invalid_argument.
[[noreturn]] void refuse_no_number();

/// What duration_cast<duration> gives, where that is within `duration`; else its nearest end.
template <class Rep, class Period>
[[nodiscard]] constexpr duration saturated(std::chrono::duration<Rep, Period> length) {
    constexpr auto most = static_cast<long double>(INT64_MAX);
    const auto count = length.count();
    if constexpr (std::is_same_v<std::chrono::duration<Rep, Period>, duration>) {
        return length;
    } else if constexpr (std::is_integral_v<Rep>) {
        __extension__ using wide = __int128;
        constexpr wide up = wide{Period::num} * 1'000'000'000;
        const auto about =
            static_cast<long double>(count) * static_cast<long double>(up) / Period::den;
        if (about >= most) return duration::max();
        if (about <= -most) return duration::min();
        return duration(static_cast<std::int64_t>(wide{count} * up / Period::den));
    } else {
        const auto about = static_cast<long double>(count) * static_cast<long double>(Period::num) *
                           1e9L / static_cast<long double>(Period::den);
        if (about != about) refuse_no_number();
        if (about >= most) return duration::max();
        if (about <= -most) return duration::min();
        return duration(static_cast<std::int64_t>(about));
    }
}

} // namespace detail

/// A length of time as options and parameters take it: made of any chrono duration, whole or
/// floating. What is longer than `duration` holds, infinity too, is as long as it holds:
/// duration::max(), which options and waits take as for ever; the same below zero.
///   errors  invalid_argument: a floating duration that is no number (NaN)
class time_span : public duration {
public:
    constexpr time_span() noexcept : duration(0) {}
    template <class Rep, class Period>
    constexpr time_span(std::chrono::duration<Rep, Period> length) // NOLINT: as a duration
        : duration(detail::saturated(length)) {}

    // Its arithmetic saturates, too: twice for ever is for ever.
    constexpr time_span& operator+=(duration more) noexcept {
        std::int64_t sum = 0;
        if (__builtin_add_overflow(count(), more.count(), &sum))
            return *this = more.count() > 0 ? max() : min();
        return *this = duration(sum);
    }
    constexpr time_span& operator-=(duration less) noexcept {
        std::int64_t left = 0;
        if (__builtin_sub_overflow(count(), less.count(), &left))
            return *this = less.count() < 0 ? max() : min();
        return *this = duration(left);
    }
    constexpr time_span& operator*=(std::int64_t times) noexcept {
        std::int64_t product = 0;
        if (__builtin_mul_overflow(count(), times, &product))
            return *this = (count() > 0) == (times > 0) ? max() : min();
        return *this = duration(product);
    }
    // By reference, as chrono's own: g++ finds a length of a derived class ambiguous otherwise.
    friend constexpr time_span operator+(const time_span& a, const time_span& b) noexcept {
        return time_span(a) += b;
    }
    template <class Rep, class Period>
    friend constexpr time_span operator+(const time_span& a,
                                         const std::chrono::duration<Rep, Period>& b) {
        return time_span(a) += time_span(b);
    }
    template <class Rep, class Period>
    friend constexpr time_span operator+(const std::chrono::duration<Rep, Period>& a,
                                         const time_span& b) {
        return time_span(b) += time_span(a);
    }
    friend constexpr time_span operator-(const time_span& a, const time_span& b) noexcept {
        return time_span(a) -= b;
    }
    template <class Rep, class Period>
    friend constexpr time_span operator-(const time_span& a,
                                         const std::chrono::duration<Rep, Period>& b) {
        return time_span(a) -= time_span(b);
    }
    template <class Rep, class Period>
    friend constexpr time_span operator-(const std::chrono::duration<Rep, Period>& a,
                                         const time_span& b) {
        return time_span(a) -= b;
    }
    template <std::integral N>
    friend constexpr time_span operator*(time_span a, N times) noexcept {
        return a *= static_cast<std::int64_t>(times);
    }
    template <std::integral N>
    friend constexpr time_span operator*(N times, time_span a) noexcept {
        return a *= static_cast<std::int64_t>(times);
    }
};

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

/// The same: a saturated sum.
[[nodiscard]] constexpr time_point operator+(time_point from, time_span length) noexcept {
    return deadline_after(from, length);
}

/// Seconds as a double, for rates and messages.
[[nodiscard]] constexpr double to_seconds(duration d) noexcept {
    return std::chrono::duration<double>(d).count();
}

/// `a` - `b`, or the nearest length that there is.
[[nodiscard]] constexpr duration between(time_point b, time_point a) noexcept {
    std::int64_t left = 0;
    if (__builtin_sub_overflow(a.time_since_epoch().count(), b.time_since_epoch().count(), &left))
        return a > b ? duration::max() : duration::min();
    return duration(left);
}

} // namespace skein

#if SKEIN_HEADER_ONLY
#include <skein/core/detail/time.ipp>
#endif
