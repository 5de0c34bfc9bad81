// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of rt/remote_error.hpp.

#include <fmt/format.h>

namespace skein::rt {

SKEIN_INLINE void failure::raise() const {
    if (from) throw remote_error(what, from);
    throw what;
}

SKEIN_INLINE std::string detail::process_name::describe() const {
    return fmt::format("{} (pid {} at {})", name, pid, host);
}

} // namespace skein::rt
