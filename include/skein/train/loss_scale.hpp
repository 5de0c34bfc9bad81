// SPDX-License-Identifier: Apache-2.0
#pragma once
// The scale of a loss in float16: large enough that small gradients do not vanish, halved when one
// overflows.
//
// All ranks see the norm of the summed gradients and so decide alike; a step whose norm is not
// finite is left out. Scales are powers of two: dividing by one changes no bit of a gradient.
//
//   source: Micikevicius et al. 2018 (arXiv 1710.03740) section 3.2; the numbers as in
//   torch.amp.GradScaler

#include <skein/core/config.hpp>

#include <algorithm>
#include <cstdint>

namespace skein::train {

/// The scale of one run; every rank holds its own, and they stay equal.
class loss_scale {
public:
    /// What a loss is multiplied by.
    [[nodiscard]] double value() const noexcept { return value_; }
    /// Steps without an overflow since the scale has changed.
    [[nodiscard]] std::uint64_t good_steps() const noexcept { return good_; }
    /// Steps with one in a row.
    [[nodiscard]] int overflows() const noexcept { return overflows_; }

    /// After a step whose gradients were finite, or not.
    void update(bool finite) noexcept {
        if (!finite) {
            value_ = std::max(least, value_ * 0.5);
            good_ = 0;
            overflows_ += 1;
            return;
        }
        overflows_ = 0;
        if (++good_ < interval) return;
        value_ *= 2.0;
        good_ = 0;
    }
    /// From a checkpoint.
    void restore(double value, std::uint64_t good_steps) noexcept {
        value_ = value;
        good_ = good_steps;
    }

    static constexpr std::uint64_t interval = 2000; ///< good steps before it is doubled
    static constexpr int most_overflows = 100;      ///< in a row: then it is no matter of scale
    /// A smaller one would take gradients out of the range of float16 at its other end.
    static constexpr double least = 1.0;

private:
    double value_ = 65536.0;
    std::uint64_t good_ = 0;
    int overflows_ = 0;
};

} // namespace skein::train
