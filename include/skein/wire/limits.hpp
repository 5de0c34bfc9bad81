// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a decoder accepts: how deep values nest, how many elements one container may have, and how
// much memory the elements of all containers take. The input alone does not bound the last: one
// byte on the wire may be an element of a kilobyte in memory.

#include <skein/core/config.hpp>

#include <cstddef>

namespace skein::wire {

/// The bounds of one decoder.
struct limits {
    /// Containers, optionals and variants inside each other.
    std::size_t max_depth = 64;
    /// Elements of one container; the bytes that are left bound it as well.
    std::size_t max_elements = static_cast<std::size_t>(-1);
    /// Bytes of memory for the elements of containers in one message. Text and blocks of numbers
    /// are not counted: they take as much as on the wire.
    std::size_t max_memory = std::size_t{1} << 30;
};

} // namespace skein::wire
