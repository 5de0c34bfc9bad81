// SPDX-License-Identifier: Apache-2.0
#pragma once
// The rows of a run's files as texts: how they are written, added, kept and replaced. Used by
// <skein/report/detail/run_dir.ipp> alone.

#include <skein/core/bytes.hpp>
#include <skein/core/disk.hpp>
#include <skein/core/error.hpp>
#include <skein/core/posix_disk.hpp>
#include <skein/core/result.hpp>
#include <skein/report/metrics_table.hpp>
#include <skein/wire/csv.hpp>
#include <skein/wire/json.hpp>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace skein::report::detail {

/// The shortest text that reads back as the same double; "nan", "inf", "-inf".
SKEIN_INLINE std::string number_text(double value) {
    char text[64];
    const auto end = std::to_chars(text, text + sizeof text, value).ptr;
    return {text, end};
}

SKEIN_INLINE std::string csv_header(const std::vector<std::string>& columns) {
    std::string out = "step";
    for (auto& column : columns) out += "," + csv_field(column);
    return out + "\n";
}

/// The text of a file, or nothing if there is none.
SKEIN_INLINE std::string read_text(const std::string& path) {
    posix_disk disk(link_policy::refuse);
    const auto bytes = disk.read_whole(path, std::uint64_t{8} << 30);
    if (bytes) return skein::to_string(byte_span(*bytes));
    if (bytes.error().code() == errc::not_found) return {};
    throw bytes.error();
}

/// Appends behind the first `good` bytes; what an earlier failure left behind them is cut off.
SKEIN_INLINE result<void> append_text(const std::string& path, std::uint64_t& good,
                                      std::string_view text) {
    posix_disk disk(link_policy::refuse);
    auto opened = disk.open(path, open_mode::append);
    if (!opened) return opened.error();
    const auto size = (*opened)->size();
    if (!size) return size.error();
    if (*size > good)
        if (auto done = (*opened)->truncate(good); !done) return done;
    good = std::min(good, *size);
    if (auto done = (*opened)->write_at(good, as_bytes(text)); !done) return done;
    good += text.size();
    return {};
}

/// Where the last complete line of a text ends.
SKEIN_INLINE std::uint64_t whole_bytes(std::string_view text) {
    const auto end = text.rfind('\n');
    return end == std::string_view::npos ? 0 : end + 1;
}

/// The rows of a metrics.csv whose step is to be kept, under a header.
template <class Keep>
std::string kept_rows(std::string_view csv, const std::vector<std::string>& columns, Keep keep) {
    std::string kept = csv_header(columns);
    const metrics_table table(csv);
    for (const auto row : table.rows())
        if (auto step = step_of(row); step && keep(*step)) kept.append(row) += '\n';
    return kept;
}
/// The lines of a text of JSON objects whose step is to be kept.
template <class Keep>
std::string kept_lines(std::string_view text, Keep keep) {
    std::string kept;
    for (auto line : whole_lines(text)) {
        const auto row = parse_json(line);
        const auto step = row ? json_uint(*row, "step") : result<std::uint64_t>(row.error());
        if (step && keep(*step)) kept.append(line) += '\n';
    }
    return kept;
}

/// Rows are added to a file, or take the place of what is behind those that `kept` leaves of it.
///   good      bytes up to the last whole row
///   rewrites  the step after which they take the place; nothing: they are added
///   kept      of the file's text: what is kept of it
template <class Kept>
result<void> write_rows(const std::string& path, std::uint64_t& good,
                        std::optional<std::uint64_t>& rewrites, std::string_view text, Kept kept) {
    if (!rewrites) return append_text(path, good, text);
    posix_disk disk(link_policy::refuse);
    const auto before = disk.read_whole(path, std::uint64_t{8} << 30);
    if (!before && before.error().code() != errc::not_found) return before.error();
    auto whole = kept(before ? as_text(*before) : std::string_view(),
                      [&](std::uint64_t step) { return step <= *rewrites; });
    whole += text;
    if (auto done = disk.replace(path, as_bytes(std::string_view(whole))); !done) return done;
    good = whole.size();
    rewrites.reset();
    return {};
}

} // namespace skein::report::detail
