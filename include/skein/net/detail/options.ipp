// SPDX-License-Identifier: Apache-2.0
#pragma once
// How a peer is named in messages.

#include <fmt/core.h>

namespace skein::net {

SKEIN_INLINE std::string to_string(const identity& who) {
    const std::string name = who.name.empty() ? "peer" : who.name;
    if (who.pid == 0) return who.host.empty() ? name : fmt::format("{} (at {})", name, who.host);
    if (who.host.empty()) return fmt::format("{} (pid {})", name, who.pid);
    return fmt::format("{} (pid {} at {})", name, who.pid, who.host);
}

} // namespace skein::net
