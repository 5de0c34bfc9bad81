// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of wire/csv.hpp.

#include <cstddef>

namespace skein {

SKEIN_INLINE std::string quoted_csv_field(std::string_view text) {
    std::string out = "\"";
    for (const char c : text) {
        if (c == '"') out += '"';
        out += c == '\n' || c == '\r' ? ' ' : c;
    }
    return out + '"';
}

SKEIN_INLINE std::string csv_field(std::string_view text) {
    return text.find_first_of(",\"\n\r") == text.npos ? std::string(text) : quoted_csv_field(text);
}

SKEIN_INLINE std::vector<std::string> split_csv(std::string_view line) {
    if (line.ends_with('\n')) line.remove_suffix(1);
    if (line.ends_with('\r')) line.remove_suffix(1); // Python's csv.writer ends lines so
    std::vector<std::string> fields(1);
    bool is_quoted = false, has_begun = false;
    for (std::size_t i = 0; i < line.size(); ++i) {
        const char c = line[i];
        if (is_quoted && c == '"' && i + 1 < line.size() && line[i + 1] == '"') {
            fields.back() += line[++i];
        } else if (c == '"' && (is_quoted || !has_begun)) {
            is_quoted = !is_quoted;
            has_begun = true;
        } else if (c == ',' && !is_quoted) {
            fields.emplace_back();
            has_begun = false;
        } else {
            fields.back() += c;
            has_begun = true;
        }
    }
    return fields;
}

} // namespace skein
