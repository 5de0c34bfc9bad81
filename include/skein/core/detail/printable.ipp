// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of core/printable.hpp.

#include <algorithm>
#include <cstdint>

#include <fmt/core.h>

namespace skein {
namespace detail {

SKEIN_INLINE std::size_t utf8_length(std::string_view text) noexcept {
    const auto at = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
    const unsigned first = at(0);
    if (first < 0x80) return 1;
    const std::size_t bytes = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
    if (first < 0xc2 || first > 0xf4 || text.size() < bytes) return 0;
    std::uint32_t code = first & (0xffu >> (bytes + 1));
    for (std::size_t i = 1; i < bytes; ++i) {
        if ((at(i) & 0xc0) != 0x80) return 0;
        code = code << 6 | (at(i) & 0x3f);
    }
    // No longer than it must be, no half of a pair, not above the last one.
    const bool good = bytes == 2 ||
                      (bytes == 3 && code >= 0x800 && (code < 0xd800 || code > 0xdfff)) ||
                      (bytes == 4 && code >= 0x10000 && code <= 0x10ffff);
    return good ? bytes : 0;
}

/// `kept`: control characters that stay.
SKEIN_INLINE std::string shown(std::string_view text, std::string_view kept) {
    std::string out;
    out.reserve(text.size());
    while (!text.empty()) {
        const auto bytes = utf8_length(text);
        const auto one = text.substr(0, std::max<std::size_t>(bytes, 1));
        text.remove_prefix(one.size());
        const auto first = static_cast<unsigned char>(one[0]);
        const bool is_control = bytes == 0 || first < 0x20 || first == 0x7f || is_c1(one);
        if (!is_control || kept.find(one[0]) != kept.npos) {
            out += one;
        } else if (one == "\n" || one == "\t" || one == "\r") {
            out += one == "\n" ? "\\n" : one == "\t" ? "\\t" : "\\r";
        } else {
            for (const char c : one)
                out +=
                    fmt::format("\\x{:02x}", static_cast<unsigned>(static_cast<unsigned char>(c)));
        }
    }
    return out;
}

} // namespace detail

SKEIN_INLINE std::string printable(std::string_view text) { return detail::shown(text, ""); }
SKEIN_INLINE std::string printable_lines(std::string_view text) {
    return detail::shown(text, "\n\t");
}

} // namespace skein
