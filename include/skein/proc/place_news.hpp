// SPDX-License-Identifier: Apache-2.0
#pragma once
// What becomes of the place of a child that runs where somebody else decides who has room: a lease
// of a cluster. A child of this host has its place from the beginning, and keeps it.

#include <skein/core/config.hpp>

#include <cstdint>
#include <functional>
#include <string>

namespace skein::proc {

struct place_news {
    enum class kind : std::uint8_t {
        waits,         ///< there is no room yet; the text says why
        given,         ///< its process is being started; the text names the node
        asked_back,    ///< its place is wanted for another; the text says why
        not_asked_back ///< any more
    };
    kind what = kind::waits;
    std::string text{};
};

/// Called on the loop of the children, not from inside of their calls.
using place_listener = std::function<void(const place_news&)>;

} // namespace skein::proc
