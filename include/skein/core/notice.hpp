// SPDX-License-Identifier: Apache-2.0
#pragma once
// Lines for a person, on standard error. That nobody can read one (a terminal that has closed, a
// full disk) is no failure of what it tells of; fmt::print would throw there.
//
//     write_notice(fmt::format("error: {}\n", why.what()));

#include <cstdio>
#include <string_view>

namespace skein {

/// Writes all of `text`, as far as that is possible, and flushes.
inline void write_notice(std::string_view text) noexcept {
    (void)std::fwrite(text.data(), 1, text.size(), stderr);
    (void)std::fflush(stderr);
}

} // namespace skein
