// SPDX-License-Identifier: Apache-2.0
#pragma once
// How long the processes of a host may be silent before they are taken for dead: at least a second
// on a host that is idle, and longer on one that keeps all of them waiting.
//
// Two things tell what a host is able to: how late the keeper's own timers come, and for how long
// workers were silent that then spoke again. The limit is four times the worst of the last minute.

#include <skein/core/time.hpp>

#include <algorithm>
#include <chrono>

namespace skein::spmd {

/// Learned by one keeper; a value.
class silence_limit {
public:
    /// `most` at or below `least`: nothing is learned.
    constexpr silence_limit(time_span least, time_span most) noexcept
        : least_(least), most_(std::max(least, most)) {}

    /// A timer came so late, or a silence of this length has ended.
    void saw(duration delay, time_point now) noexcept {
        forget(now);
        newer_ = std::max(newer_, delay);
    }
    [[nodiscard]] time_span limit(time_point now) noexcept {
        forget(now);
        const duration worst = std::max(newer_, older_);
        constexpr int times = 4;
        if (worst >= duration(most_) / times) return most_;
        return std::max(least_, time_span(worst * times));
    }

private:
    /// Two halves of a minute, so that nothing is forgotten before half of it.
    void forget(time_point now) noexcept {
        constexpr auto half = std::chrono::seconds(30);
        if (now - begun_ < half) return;
        older_ = now - begun_ < 2 * half ? newer_ : duration{};
        newer_ = {};
        begun_ = now;
    }

    time_span least_, most_;
    duration newer_{}, older_{};
    time_point begun_{};
};

} // namespace skein::spmd
