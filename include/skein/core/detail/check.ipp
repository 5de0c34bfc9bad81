// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a failed check says, and the end of the program.

#include <cstdio>
#include <cstdlib>
#include <string>

namespace skein::detail {

SKEIN_INLINE void check_failed(const char* condition, std::source_location where,
                               fmt::string_view text, fmt::format_args values) {
    const std::string message = fmt::vformat(text, values);
    std::fprintf(stderr, "skein: check failed: %s: %s (%s:%u in %s)\n", condition, message.c_str(),
                 where.file_name(), where.line(), where.function_name());
    std::fflush(stderr);
    std::abort();
}

} // namespace skein::detail
