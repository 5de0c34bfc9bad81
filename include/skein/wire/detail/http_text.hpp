// SPDX-License-Identifier: Apache-2.0
#pragma once
// The texts of HTTP: targets, header values.

#include <skein/wire/http.hpp>

#include <optional>
#include <string>
#include <string_view>

namespace skein::wire::detail {

/// Undoes %XX (and + for a space); nothing: digits are missing, or the text is not printable UTF-8.
[[nodiscard]] std::optional<std::string> unescape(std::string_view text, bool plus_is_space);
/// Splits a target into path and query; a text that says what is wrong, or nothing.
[[nodiscard]] std::optional<std::string> read_target(std::string_view target, http_request& into);
/// The same text in lower case (ASCII).
[[nodiscard]] std::string lower(std::string_view text);

} // namespace skein::wire::detail
