// SPDX-License-Identifier: Apache-2.0
#pragma once
// Text of other processes as a terminal may have it: what it would take for a command is shown, not
// obeyed.
//
//     fmt::print("{}\n", printable(job.name));                  // "evil\x1b[31m" on one line
//     // a text of several lines keeps them
//     fmt::print(stderr, "error: {}\n", printable_lines(why));
//
// Names of programs, nodes and actors, and texts of exceptions are what somebody else has chosen.
// What a worker prints is its program's own output, and is not touched.

#include <skein/core/config.hpp>

#include <cstddef>
#include <string>
#include <string_view>

namespace skein {

/// One line: control characters, C1 ones among them, and bytes that are not UTF-8 become \n, \t, \r
/// or \xNN.
[[nodiscard]] std::string printable(std::string_view text);

/// The same, but ends of lines and tabs stay.
[[nodiscard]] std::string printable_lines(std::string_view text);

namespace detail {
/// The bytes of the character with which a text begins that is not empty; 0: it is not UTF-8.
[[nodiscard]] std::size_t utf8_length(std::string_view text) noexcept;
/// U+0080 to U+009F: many terminals take them as they take ESC and a letter.
[[nodiscard]] constexpr bool is_c1(std::string_view character) noexcept {
    return character.size() == 2 && character[0] == '\xc2' &&
           static_cast<unsigned char>(character[1]) < 0xa0;
}
} // namespace detail

} // namespace skein

#if SKEIN_HEADER_ONLY
#include <skein/core/detail/printable.ipp>
#endif
