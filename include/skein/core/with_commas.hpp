// SPDX-License-Identifier: Apache-2.0
#pragma once
// Large counts for people.

#include <skein/core/config.hpp>

#include <cstdint>
#include <string>

namespace skein {

/// 1234567 as "1,234,567".
[[nodiscard]] inline std::string with_commas(std::uint64_t n) {
    auto out = std::to_string(n);
    for (auto at = out.size(); at > 3;) out.insert(at -= 3, 1, ',');
    return out;
}

} // namespace skein
