// SPDX-License-Identifier: Apache-2.0
#pragma once
// SKEIN_CHECK: a bug of the caller ends the program with place and values, in every build type.
//
//     SKEIN_CHECK(r < n, "rank {} >= world size {}", r, n);

#include <skein/core/config.hpp>

#include <cstdio>
#include <cstdlib>
#include <source_location>
#include <string>

#include <fmt/core.h>

namespace skein::detail {

[[noreturn]] inline void check_failed(const char* condition, const std::string& message,
                                      std::source_location where) {
    std::fprintf(stderr, "skein: check failed: %s: %s (%s:%u in %s)\n", condition, message.c_str(),
                 where.file_name(), where.line(), where.function_name());
    std::fflush(stderr);
    std::abort();
}

} // namespace skein::detail

/// Aborts with the message (fmt syntax) and location when the condition is false.
#define SKEIN_CHECK(condition, ...)                                                                \
    (static_cast<bool>(condition)                                                                  \
         ? void()                                                                                  \
         : ::skein::detail::check_failed(#condition, ::fmt::format(__VA_ARGS__),                   \
                                         std::source_location::current()))
