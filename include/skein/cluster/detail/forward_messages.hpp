// SPDX-License-Identifier: Apache-2.0
#pragma once
// A browser's connection to the head's page, inside of a link: see cluster/page_forward.hpp.

#include <skein/core/config.hpp>
#include <skein/cluster/detail/lease_messages.hpp>
#include <skein/core/bytes.hpp>

#include <cstdint>

namespace skein::cluster {

/// A connection to the page begins.
struct open_forward {
    static constexpr std::uint16_t number = 120;
    std::uint32_t version = cluster_version;
};
/// It has this number, over this link.
struct forward_opened {
    static constexpr std::uint16_t number = 121;
    std::uint32_t forward = 0;
};
/// What the browser has said.
struct forward_bytes {
    static constexpr std::uint16_t number = 122;
    std::uint32_t forward = 0;
    byte_buffer bytes;
    bool ends = false; ///< it says no more
};
/// There is room for more.
struct forward_taken {
    static constexpr std::uint16_t number = 123;
};
/// Waits for what the page says.
struct take_forwarded {
    static constexpr std::uint16_t number = 124;
    std::uint32_t forward = 0;
};
/// This; nothing: that was all.
struct forwarded {
    static constexpr std::uint16_t number = 125;
    byte_buffer bytes;
};

} // namespace skein::cluster
