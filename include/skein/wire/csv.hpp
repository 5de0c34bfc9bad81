// SPDX-License-Identifier: Apache-2.0
#pragma once
// Lines of a CSV file: the one reader and writer of tables of numbers, lists of rows, and the like.
//
//     const auto line = csv_field("val_a,val_b") + "," + csv_field("loss");
//     split_csv(line);                                    // {"val_a,val_b", "loss"}

#include <skein/core/config.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace skein {

/// A field, in quotes. Ends of lines become spaces: a row stays one line.
[[nodiscard]] std::string quoted_csv_field(std::string_view text);
/// The same, in quotes only where it needs them.
[[nodiscard]] std::string csv_field(std::string_view text);
/// The fields of one line, with or without its end. Quotes count where a field begins with one.
[[nodiscard]] std::vector<std::string> split_csv(std::string_view line);

} // namespace skein

#if SKEIN_HEADER_ONLY
#include <skein/wire/detail/csv.ipp>
#endif
