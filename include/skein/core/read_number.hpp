// SPDX-License-Identifier: Apache-2.0
#pragma once
// Numbers out of text that a program wrote: the same in every locale. std::strtod, std::stod and
// streams read "0.5" as 0 once a program has called setlocale() for a language that writes 0,5.
//
//     const auto best = read_double(saved);       // nothing, if that is no number

#include <skein/core/config.hpp>

#include <optional>
#include <string_view>

namespace skein {

/// The number that fmt, JSON or "{:a}" wrote: "0.5", "-1e-3", "0x1.8p+1", "inf", "nan". The whole
/// text, or nothing.
[[nodiscard]] std::optional<double> read_double(std::string_view text) noexcept;

} // namespace skein

#if SKEIN_HEADER_ONLY
#include <skein/core/detail/read_number.ipp>
#endif
