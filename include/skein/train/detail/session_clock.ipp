// SPDX-License-Identifier: Apache-2.0
#pragma once
// Where the time of a step goes. Used by <skein/train/detail/session_core.ipp> alone.

#include <skein/core/time.hpp>
#include <skein/dist/comm_thread.hpp>
#include <skein/train/callbacks.hpp>
#include <skein/train/context.hpp>
#include <skein/train/detail/session_parts.ipp>

#include <algorithm>
#include <cstdint>
#include <utility>

namespace skein::train::detail {

class step_clock {
public:
    explicit step_clock(const context& ctx) : ctx_(ctx) {}

    /// Since the row before; all in seconds.
    [[nodiscard]] step_timing& time() noexcept { return time_; }
    /// Of the exchange with the backward pass, in [0, 1].
    [[nodiscard]] double overlap() const noexcept { return overlap_; }

    void begin_step() {
        begun_ = seconds_now();
        if (row_begun_ <= 0) row_begun_ = begun_;
    }
    void begin_compute() { busy_ = busy(); }
    /// A forward pass begins with the batch in hand, or with the loss when nobody asked for one.
    void begin_forward() {
        if (forward_begun_ <= 0) forward_begun_ = seconds_now();
    }
    void end_forward() { time_.forward += seconds_now() - std::exchange(forward_begun_, 0.0); }

    /// A pass of a micro-batch is over.
    ///   is_last  of the step, on this rank
    void end_pass(bool is_last) {
        if (!is_last) time_.early = time_.forward + time_.backward;
    }

    /// Runs what waits for other ranks; the seconds that took.
    template <class Call>
    double waiting(Call call) {
        const auto begin = seconds_now();
        call();
        const auto seconds = seconds_now() - begin;
        if (ctx_.world_size() > 1) time_.exposed += seconds;
        return seconds;
    }
    void count_overlap(double waited) {
        const double worked = busy() - busy_;
        overlap_ = worked > 0 ? std::clamp(1.0 - waited / worked, 0.0, 1.0) : 0.0;
    }

    /// Where this rank's time since the row before has gone.
    void end_row(step_info& now) const {
        now.own = time_;
        now.since_row = seconds_now() - row_begun_;
    }
    /// The row is agreed on: from here on the next one's time counts, that of the row itself first.
    void begin_row(double waited) {
        time_ = {};
        row_begun_ = seconds_now() - waited;
        if (ctx_.world_size() > 1) time_.exposed = waited;
    }
    /// What was computed is thrown away.
    void forget_compute() noexcept {
        time_.data = time_.forward = time_.backward = time_.early = 0.0;
        forward_begun_ = 0.0;
    }

    void end_step(step_info& now, std::uint64_t samples, std::int64_t tokens_per_sample) {
        const double tokens = static_cast<double>(samples) *
                              static_cast<double>(std::max<std::int64_t>(1, tokens_per_sample));
        now.seconds = seconds_now() - begun_;
        now.tokens_per_s = now.seconds > 0 ? tokens / now.seconds : 0.0;
        seconds_ += now.seconds;
        tokens_ += tokens;
    }
    /// Over all steps.
    [[nodiscard]] double tokens_per_s() const noexcept {
        return seconds_ > 0 ? tokens_ / seconds_ : 0.0;
    }

private:
    [[nodiscard]] double busy() const {
        return ctx_.comm() != nullptr ? to_seconds(ctx_.comm()->stats().busy) : 0.0;
    }

    const context& ctx_;
    step_timing time_;
    double begun_ = 0.0, forward_begun_ = 0.0, busy_ = 0.0, overlap_ = 0.0, row_begun_ = 0.0;
    double seconds_ = 0.0, tokens_ = 0.0; // of all steps
};

} // namespace skein::train::detail
