// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a decoder accepts. The size of the input bounds every allocation already; these bound the
// rest: how deep values nest, and how many elements one container may have.

#include <skein/core/config.hpp>

#include <cstddef>

namespace skein::wire {

struct limits {
    /// Containers, optionals and variants inside each other.
    std::size_t max_depth = 64;
    /// Elements of one container; the bytes that are left bound it as well.
    std::size_t max_elements = static_cast<std::size_t>(-1);
};

} // namespace skein::wire
