// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bytes, counts and times as texts for people. Two families, for two kinds of numbers: what is
// measured is rounded to few digits with decimal units, what somebody has chosen or a kernel tells
// (memory, files) is shown with binary ones.
//
//     human_bytes(1.2e9);          // "1.20 GB"
//     binary_bytes(1'503'238'554); // "1.4 GiB"
//     human_seconds(0.19);         // "190 ms"
//     elapsed_text(725'000);       // "12 min 5 s"

#include <skein/core/config.hpp>

#include <cstdint>
#include <string>

namespace skein {

/// Three digits: "190 ms", "1.25 s"; from 100 s on as human_clock().
[[nodiscard]] std::string human_seconds(double seconds);
/// "05:57", "1:02:03", "3d 04h"; "--:--" where it is not known.
[[nodiscard]] std::string human_clock(double seconds);
/// Three digits: "5.23k", "1.30M", "812".
[[nodiscard]] std::string human_count(double count);
/// Three digits, decimal units: "1.20 GB", "10 B".
[[nodiscard]] std::string human_bytes(double bytes);

/// The cost of one piece of work, two decimals: "4.56 us", "1.23 ms", "2.00 s".
[[nodiscard]] std::string cost_seconds(double seconds);
/// The size of one piece of work, decimal units: "12 bytes", "602.1 kB", "1234.5 MB".
[[nodiscard]] std::string cost_bytes(double bytes);

/// "512 bytes", "1.4 GiB".
[[nodiscard]] std::string binary_bytes(std::uint64_t bytes);
/// A part of a whole, both in the unit of the whole: "12.5 of 300.0 MiB".
[[nodiscard]] std::string binary_part(std::uint64_t part, std::uint64_t whole);
/// In GiB, without the unit: "15.6", "0".
[[nodiscard]] std::string gibibytes(std::uint64_t bytes);

/// The two largest units of a time: "2 d 3 h", "3 h 12 min", "12 min 5 s", "5 s".
[[nodiscard]] std::string elapsed_text(std::int64_t milliseconds);

} // namespace skein

#if SKEIN_HEADER_ONLY
#include <skein/core/detail/units.ipp>
#endif
