// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of core/read_number.hpp.

#include <charconv>
#include <system_error>

namespace skein {

SKEIN_INLINE std::optional<double> read_double(std::string_view text) noexcept {
    const bool is_negative = text.starts_with('-');
    if (is_negative) text.remove_prefix(1);
    if (text.starts_with('-')) return std::nullopt;
    const bool is_hex = text.starts_with("0x") || text.starts_with("0X"); // from_chars takes none
    if (is_hex) text.remove_prefix(2);
    double value = 0;
    const auto* const end = text.data() + text.size();
    const auto read = std::from_chars(text.data(), end, value,
                                      is_hex ? std::chars_format::hex : std::chars_format::general);
    if (read.ec != std::errc() || read.ptr != end) return std::nullopt;
    return is_negative ? -value : value;
}

} // namespace skein
