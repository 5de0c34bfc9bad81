// SPDX-License-Identifier: Apache-2.0
#pragma once
// SKEIN_CHECK: a bug of the caller ends the program with place and values, in every build type.
//
//     SKEIN_CHECK(r < n, "rank {} >= world size {}", r, n);
//
// What a use costs its file is a call; the text is made by one function for all of them.

#include <skein/core/config.hpp>

#include <cstdio>
#include <cstdlib>
#include <source_location>
#include <string>

#include <fmt/core.h>

namespace skein::detail {

[[noreturn, gnu::cold, gnu::noinline]] inline void check_failed(const char* condition,
                                                                std::source_location where,
                                                                fmt::string_view format,
                                                                fmt::format_args values) {
    const std::string message = fmt::vformat(format, values);
    std::fprintf(stderr, "skein: check failed: %s: %s (%s:%u in %s)\n", condition, message.c_str(),
                 where.file_name(), where.line(), where.function_name());
    std::fflush(stderr);
    std::abort();
}

template <class... Values>
[[noreturn, gnu::cold, gnu::noinline]] void check_failed_with(
    const char* condition, std::source_location where, fmt::format_string<const Values&...> format,
    const Values&... values) {
    check_failed(condition, where, format, fmt::make_format_args(values...));
}

} // namespace skein::detail

/// Aborts with the message (fmt syntax) and location when the condition is false.
#define SKEIN_CHECK(condition, ...)                                                                \
    (static_cast<bool>(condition) ? void()                                                         \
                                  : ::skein::detail::check_failed_with(                            \
                                        #condition, std::source_location::current(), __VA_ARGS__))
