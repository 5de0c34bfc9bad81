// SPDX-License-Identifier: Apache-2.0
#pragma once
// How long to wait between two looks at a device, which tells nobody when it is done.

#include <skein/core/time.hpp>

#include <algorithm>
#include <chrono>
#include <utility>

namespace skein::dist::detail {

/// Pauses between two looks at a device: none at first, then longer ones.
class look_pauses {
public:
    [[nodiscard]] duration next() noexcept {
        if (looks_ < 64) {
            ++looks_;
            return duration::zero();
        }
        return std::exchange(pause_, std::min(2 * pause_, duration(std::chrono::milliseconds(1))));
    }

private:
    int looks_ = 0;
    duration pause_ = std::chrono::microseconds(50);
};

} // namespace skein::dist::detail
