// SPDX-License-Identifier: Apache-2.0
#pragma once
// SKEIN_CHECK: a bug of the caller ends the program with place and values, in every build type.
//
//     SKEIN_CHECK(r < n, "rank {} >= world size {}", r, n);

#include <skein/core/config.hpp>

#include <source_location>

#include <fmt/core.h>

// The compiled form goes with the fmt it was built with; its CMake targets say which one that was.
#if defined(SKEIN_COMPILED) && defined(SKEIN_FMT_MAJOR)
#if FMT_VERSION / 10000 != SKEIN_FMT_MAJOR
#error                                                                                             \
    "skein: compiled with another fmt than the one found first here. LibTorch brings one of its own: give its include folder with -idirafter, not with -isystem"
#endif
#endif

namespace skein::detail {

/// Prints condition, values and place to standard error and aborts.
[[noreturn]] void check_failed(const char* condition, std::source_location where,
                               fmt::string_view text, fmt::format_args values);

/// The characters of a checked format: get() since fmt 10, a conversion before it, which fmt
/// 12.2 deprecates.
template <class Format>
[[nodiscard]] fmt::string_view format_text(const Format& format) {
    if constexpr (requires { format.get(); })
        return format.get();
    else
        return format;
}

/// The slow path of SKEIN_CHECK: takes the values by reference, formats nothing itself.
template <class... Values>
[[noreturn, gnu::cold, gnu::noinline]] void check_failed_with(const char* condition,
                                                              std::source_location where,
                                                              fmt::format_string<Values...> text,
                                                              Values&&... values) {
    check_failed(condition, where, format_text(text), fmt::make_format_args(values...));
}

} // namespace skein::detail

/// Aborts with the message (fmt syntax) and location when the condition is false.
#define SKEIN_CHECK(condition, ...)                                                                \
    (static_cast<bool>(condition) ? void()                                                         \
                                  : ::skein::detail::check_failed_with(                            \
                                        #condition, std::source_location::current(), __VA_ARGS__))

#if SKEIN_HEADER_ONLY
#include <skein/core/detail/check.ipp>
#endif
