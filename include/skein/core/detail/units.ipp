// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of core/units.hpp.

#include <array>
#include <cmath>
#include <cstddef>

#include <fmt/core.h>

namespace skein {
namespace detail {

/// Three digits and the largest unit in which the value is at least one.
SKEIN_INLINE std::string three_digits(double value, const std::array<const char*, 5>& units) {
    if (!std::isfinite(value)) return "?";
    std::size_t unit = 0;
    for (; std::fabs(value) >= 999.5 && unit + 1 < units.size(); ++unit) value /= 1000.0;
    const int digits = unit == 0 || std::fabs(value) >= 99.95 ? 0
                       : std::fabs(value) >= 9.995            ? 1
                                                              : 2;
    return fmt::format("{:.{}f}{}", value, digits, units[unit]);
}

} // namespace detail

SKEIN_INLINE std::string human_seconds(double seconds) {
    if (!std::isfinite(seconds)) return "?";
    if (seconds < 1e-3) return fmt::format("{:.0f} us", seconds * 1e6);
    if (seconds < 1.0) return fmt::format("{:.{}f} ms", seconds * 1e3, seconds < 0.01 ? 1 : 0);
    if (seconds < 100.0) return fmt::format("{:.{}f} s", seconds, seconds < 10.0 ? 2 : 1);
    return human_clock(seconds);
}

SKEIN_INLINE std::string human_clock(double seconds) {
    if (!std::isfinite(seconds) || seconds < 0.0 || seconds > 1e9) return "--:--";
    const auto total = static_cast<std::uint64_t>(seconds + 0.5);
    const auto days = total / 86400, hours = total / 3600 % 24, minutes = total / 60 % 60;
    if (days > 0) return fmt::format("{}d {:02}h", days, hours);
    if (hours > 0) return fmt::format("{}:{:02}:{:02}", hours, minutes, total % 60);
    return fmt::format("{:02}:{:02}", minutes, total % 60);
}

SKEIN_INLINE std::string human_count(double count) {
    return detail::three_digits(count, {"", "k", "M", "G", "T"});
}

SKEIN_INLINE std::string human_bytes(double bytes) {
    return detail::three_digits(bytes, {" B", " kB", " MB", " GB", " TB"});
}

SKEIN_INLINE std::string cost_seconds(double seconds) {
    return seconds < 1e-4 ? fmt::format("{:.2f} us", seconds * 1e6)
           : seconds < 1  ? fmt::format("{:.2f} ms", seconds * 1e3)
                          : fmt::format("{:.2f} s", seconds);
}

SKEIN_INLINE std::string cost_bytes(double bytes) {
    return bytes < 1000        ? fmt::format("{:.0f} bytes", bytes)
           : bytes < 1'000'000 ? fmt::format("{:.1f} kB", bytes / 1e3)
                               : fmt::format("{:.1f} MB", bytes / 1e6);
}

SKEIN_INLINE std::string binary_bytes(std::uint64_t bytes) {
    static constexpr std::array<const char*, 5> units = {"bytes", "KiB", "MiB", "GiB", "TiB"};
    auto value = static_cast<double>(bytes);
    std::size_t unit = 0;
    for (; value >= 1024 && unit + 1 < units.size(); ++unit) value /= 1024;
    return unit == 0 ? fmt::format("{} bytes", bytes)
                     : fmt::format("{:.1f} {}", value, units[unit]);
}

SKEIN_INLINE std::string binary_part(std::uint64_t part, std::uint64_t whole) {
    const bool is_small = whole < std::uint64_t{1} << 20;
    const double unit = is_small ? 1 << 10 : 1 << 20;
    return fmt::format("{:.1f} of {:.1f} {}", static_cast<double>(part) / unit,
                       static_cast<double>(whole) / unit, is_small ? "KiB" : "MiB");
}

SKEIN_INLINE std::string gibibytes(std::uint64_t bytes) {
    constexpr double unit = 1u << 30;
    return bytes == 0 ? "0" : fmt::format("{:.1f}", static_cast<double>(bytes) / unit);
}

SKEIN_INLINE std::string elapsed_text(std::int64_t milliseconds) {
    const auto s = milliseconds / 1000;
    if (s >= 86'400) return fmt::format("{} d {} h", s / 86'400, s % 86'400 / 3600);
    if (s >= 3600) return fmt::format("{} h {} min", s / 3600, s % 3600 / 60);
    return s >= 60 ? fmt::format("{} min {} s", s / 60, s % 60) : fmt::format("{} s", s);
}

} // namespace skein
