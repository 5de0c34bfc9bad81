// SPDX-License-Identifier: Apache-2.0
#pragma once
// Times on command lines.

#include <skein/core/error.hpp>

#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>

#include <fmt/format.h>

namespace skein_program {

/// "90", "90s", "15m", "2h", in milliseconds; 0: none is given.
///   errors  usage, which names the option
inline std::uint64_t read_time(const std::string& text, const char* option) {
    if (text.empty()) return 0;
    std::uint64_t n = 0;
    const auto* const end = text.data() + text.size();
    const auto read = std::from_chars(text.data(), end, n);
    const std::string_view unit(read.ptr, static_cast<std::size_t>(end - read.ptr));
    const std::uint64_t seconds = unit.empty() || unit == "s" ? 1
                                  : unit == "m"               ? 60
                                  : unit == "h"               ? 3600
                                                              : 0;
    if (read.ec != std::errc() || seconds == 0 || n == 0 || n > 10'000'000)
        throw skein::error(skein::errc::usage, fmt::format("{} {}: a time is wanted", option, text))
            .with_hint("seconds, or with a unit: 90, 90s, 15m, 2h");
    return n * seconds * 1000;
}

} // namespace skein_program
