// SPDX-License-Identifier: Apache-2.0
#pragma once
// What ranks tell each other of where they are.

#include <skein/core/bytes.hpp>

#include <string>

namespace skein::spmd {
class rendezvous;
}

namespace skein::dist::detail {

/// What one rank tells the others of its place, separated by newlines.
struct place_card {
    std::string host;    ///< the same for ranks that can share memory
    std::string network; ///< the same for ranks that have the same loopback

    static place_card of(const spmd::rendezvous& world);
    static place_card decode(byte_span bytes);
    [[nodiscard]] std::string encode() const;
};

} // namespace skein::dist::detail

#if SKEIN_HEADER_ONLY
#include <skein/dist/detail/place_card.ipp>
#endif
