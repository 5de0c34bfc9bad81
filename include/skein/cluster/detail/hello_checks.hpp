// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a head refuses of a first message: another release, a text that is too long for logs,
// listings and orders.

#include <skein/cluster/detail/driver_messages.hpp>
#include <skein/core/error.hpp>

#include <cstddef>
#include <cstdint>
#include <string_view>

#include <fmt/format.h>

namespace skein::cluster::detail {

///   errors  mismatch
inline void check_version(std::uint32_t theirs, std::string_view who) {
    if (theirs == cluster_version) return;
    throw error(errc::mismatch,
                fmt::format("{} speaks version {} of the cluster's messages, the head "
                            "version {}",
                            who, theirs, cluster_version))
        .with_hint("use one release of skein for head, nodes and programs");
}

///   errors  too_large
inline void check_text(std::string_view what, std::string_view text, std::size_t most = 4096) {
    if (text.size() <= most) return;
    throw error(errc::too_large,
                fmt::format("{} has {} bytes, at most {} are taken", what, text.size(), most));
}

} // namespace skein::cluster::detail
