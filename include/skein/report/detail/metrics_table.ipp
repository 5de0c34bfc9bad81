// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of report/metrics_table.hpp.

#include <skein/core/read_number.hpp>
#include <skein/wire/csv.hpp>

#include <algorithm>
#include <charconv>
#include <system_error>

namespace skein::report {

SKEIN_INLINE std::optional<double> number_of(std::string_view cell) { return read_double(cell); }

SKEIN_INLINE std::optional<std::uint64_t> step_of(std::string_view row) {
    std::uint64_t step = 0;
    const auto end = std::from_chars(row.data(), row.data() + row.size(), step);
    return end.ec == std::errc() ? std::optional(step) : std::nullopt;
}

namespace detail {
SKEIN_INLINE std::vector<std::string_view> whole_lines(std::string_view text) {
    std::vector<std::string_view> lines;
    for (std::size_t end; (end = text.find('\n')) != std::string_view::npos;
         text.remove_prefix(end + 1))
        lines.push_back(text.substr(0, end));
    return lines;
}
} // namespace detail

SKEIN_INLINE metrics_table::metrics_table(std::string_view text, torn_line last)
    : rows_(detail::whole_lines(text)) {
    if (last == torn_line::row && !text.empty() && !text.ends_with('\n'))
        rows_.push_back(text.substr(text.rfind('\n') + 1)); // npos + 1 is 0
    if (rows_.empty()) return;
    names_ = split_csv(rows_.front());
    rows_.erase(rows_.begin());
}

SKEIN_INLINE std::vector<std::string> metrics_table::cells(std::size_t at) const {
    return split_csv(row(at));
}

SKEIN_INLINE last_values::last_values(std::string_view text) {
    const auto end = text.find('\n');
    if (end == text.npos) return;
    names_ = split_csv(text.substr(0, end));
    values_.resize(names_.size());
    auto rows = text.substr(end + 1);
    for (std::size_t back = 0; back < most_rows && !rows.empty(); ++back) {
        rows.remove_suffix(rows.back() == '\n' ? 1 : 0);
        const auto begin = rows.rfind('\n');
        const auto cells = split_csv(begin == rows.npos ? rows : rows.substr(begin + 1));
        for (std::size_t i = 0; i < std::min(cells.size(), values_.size()); ++i)
            if (!values_[i]) values_[i] = number_of(cells[i]);
        rows = begin == rows.npos ? std::string_view() : rows.substr(0, begin + 1);
    }
}

SKEIN_INLINE std::optional<double> last_values::of(std::span<const std::string_view> names) const {
    for (const auto name : names)
        for (std::size_t i = 0; i < names_.size(); ++i)
            if (names_[i] == name && values_[i]) return values_[i];
    return std::nullopt;
}

} // namespace skein::report
