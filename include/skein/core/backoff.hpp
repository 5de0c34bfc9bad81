// SPDX-License-Identifier: Apache-2.0
#pragma once
// backoff: how long to wait before the next try. Pauses grow from `first` by a factor, to `most`.
//
//     backoff pauses(50ms, 2s);
//     while (!reached()) co_await sleep_for(pauses.next()); // 50 ms, 100 ms, ... 2 s, 2 s
//     pauses.reset();                                      // it was reached: 50 ms again
//
// Who has a count of failures instead asks pause_after(). Many who wait for one thing take
// next(random), so that they do not all come again at once.

#include <skein/core/random.hpp>
#include <skein/core/time.hpp>

#include <algorithm>
#include <cstdint>
#include <utility>

namespace skein {

/// The pause behind so many failures in a row: `first` behind the first one, `factor` times as long
/// behind each further one, never longer than `most`.
[[nodiscard]] constexpr duration pause_after(std::int64_t failures, duration first, duration most,
                                             int factor = 2) noexcept {
    auto pause = std::min(first, most);
    for (std::int64_t n = 1; n < failures && pause < most; ++n) {
        if (factor <= 1 || pause == duration(0)) break; // it does not grow
        pause = pause > most / factor ? most : pause * factor;
    }
    return pause;
}

/// Pauses of one who tries again and again.
class backoff {
public:
    ///   first   the first pause; more than `most` counts as `most`
    ///   most    no pause is longer
    constexpr backoff(duration first, duration most, int factor = 2) noexcept
        : first_(std::min(first, most)), most_(most), next_(first_), factor_(factor) {}

    /// How long to wait now; the pause after that is longer.
    [[nodiscard]] constexpr duration next() noexcept {
        return std::exchange(next_, pause_after(2, next_, most_, factor_));
    }
    /// The same, shortened at random by up to half.
    [[nodiscard]] duration next(random_source& random) {
        const auto whole = next();
        const auto half = static_cast<std::uint64_t>(whole.count() / 2);
        return half == 0 ? whole : whole - duration(static_cast<std::int64_t>(random.below(half)));
    }
    /// It has come through: the next pause is the first again.
    constexpr void reset() noexcept { next_ = first_; }

private:
    duration first_, most_, next_;
    int factor_;
};

} // namespace skein
