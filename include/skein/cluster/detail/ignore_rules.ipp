// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of cluster/detail/ignore_rules.hpp.

#include <cctype>
#include <cstddef>
#include <span>

namespace skein::cluster::detail {

/// [:name:] of a bracket. Names of the C locale.
SKEIN_INLINE bool in_class(std::string_view name, unsigned char c) noexcept {
    const bool lower = c >= 'a' && c <= 'z', upper = c >= 'A' && c <= 'Z';
    const bool digit = c >= '0' && c <= '9';
    if (name == "alpha") return lower || upper;
    if (name == "digit") return digit;
    if (name == "alnum") return lower || upper || digit;
    if (name == "lower") return lower;
    if (name == "upper") return upper;
    if (name == "space") return c == ' ' || (c >= '\t' && c <= '\r');
    if (name == "blank") return c == ' ' || c == '\t';
    if (name == "xdigit") return digit || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
    if (name == "punct") return c > ' ' && c < 0x7f && !lower && !upper && !digit;
    return false;
}

/// The bracket at pattern[at]; moves `at` behind it. One without an end matches nothing.
SKEIN_INLINE bool bracket_matches(std::string_view pattern, std::size_t& at,
                                  unsigned char c) noexcept {
    auto i = at + 1;
    const bool is_not = i < pattern.size() && (pattern[i] == '!' || pattern[i] == '^');
    if (is_not) ++i;
    bool found = false;
    const auto one = [&]() -> unsigned char {
        if (pattern[i] == '\\' && i + 1 < pattern.size()) ++i;
        return static_cast<unsigned char>(pattern[i++]);
    };
    for (const auto first = i; i < pattern.size();) {
        if (pattern[i] == ']' && i != first) {
            at = i + 1;
            return found != is_not;
        }
        if (pattern[i] == '[' && pattern.substr(i).starts_with("[:")) {
            if (const auto end = pattern.find(":]", i + 2); end != std::string_view::npos) {
                found = found || in_class(pattern.substr(i + 2, end - i - 2), c);
                i = end + 2;
                continue;
            }
        }
        const auto low = one();
        auto high = low;
        if (i + 1 < pattern.size() && pattern[i] == '-' && pattern[i + 1] != ']') {
            ++i;
            high = one();
        }
        found = found || (low <= c && c <= high);
    }
    at = pattern.size();
    return false;
}

/// One character of the pattern, which is not '*'.
SKEIN_INLINE bool one_matches(std::string_view pattern, std::size_t& at, char c) noexcept {
    if (pattern[at] == '?') return ++at, true;
    if (pattern[at] == '[') return bracket_matches(pattern, at, static_cast<unsigned char>(c));
    if (pattern[at] == '\\' && at + 1 < pattern.size()) ++at;
    return pattern[at++] == c;
}

SKEIN_INLINE bool glob_matches(std::string_view pattern, std::string_view name) noexcept {
    constexpr auto none = static_cast<std::size_t>(-1);
    std::size_t p = 0, n = 0, star = none, from = 0; // the last star, and where it ends in the name
    while (n < name.size()) {
        if (p < pattern.size() && pattern[p] == '*') {
            star = p++;
            from = n;
        } else if (p < pattern.size() && one_matches(pattern, p, name[n])) {
            ++n;
        } else if (star != none) {
            p = star + 1;
            n = ++from;
        } else {
            return false;
        }
    }
    while (p < pattern.size() && pattern[p] == '*') ++p;
    return p == pattern.size();
}

/// Names of a pattern against those of a path: the same walk with "**" in the place of '*'.
SKEIN_INLINE bool names_match(std::span<const std::string> pattern,
                              std::span<const std::string_view> path) noexcept {
    constexpr auto none = static_cast<std::size_t>(-1);
    std::size_t p = 0, n = 0, star = none, from = 0;
    while (n < path.size()) {
        if (p < pattern.size() && pattern[p] == "**") {
            star = p++;
            // At the end it stands for something, not for nothing: "a/**" is not "a" itself.
            if (p == pattern.size()) return true;
            from = n;
        } else if (p < pattern.size() && glob_matches(pattern[p], path[n])) {
            ++p;
            ++n;
        } else if (star != none) {
            p = star + 1;
            n = ++from;
        } else {
            return false;
        }
    }
    return p == pattern.size();
}

SKEIN_INLINE std::vector<std::string_view> names_of(std::string_view path) {
    std::vector<std::string_view> names;
    while (!path.empty()) {
        const auto slash = path.find('/');
        names.push_back(path.substr(0, slash));
        path = slash == std::string_view::npos ? std::string_view() : path.substr(slash + 1);
    }
    return names;
}

SKEIN_INLINE ignore_rules::ignore_rules(std::string_view text) {
    if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);
    while (!text.empty()) {
        const auto end = text.find('\n');
        add(text.substr(0, end));
        text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
    }
}

SKEIN_INLINE void ignore_rules::add(std::string_view line) {
    if (line.ends_with('\r')) line.remove_suffix(1);
    while (line.ends_with(' ') && !line.ends_with("\\ ")) line.remove_suffix(1);
    if (line.empty() || line.front() == '#') return;
    rule r;
    r.is_negated = line.front() == '!';
    if (r.is_negated) line.remove_prefix(1);
    r.needs_folder = line.ends_with('/');
    if (r.needs_folder) line.remove_suffix(1);
    // With a slash in it, a pattern begins at the top; without, it may stand in any folder.
    if (line.find('/') == std::string_view::npos) r.names.emplace_back("**");
    if (line.starts_with('/')) line.remove_prefix(1);
    if (line.empty()) return;
    for (const auto name : names_of(line)) r.names.emplace_back(name);
    rules_.push_back(std::move(r));
}

SKEIN_INLINE bool ignore_rules::matches(std::string_view path, bool is_folder) const {
    const auto names = names_of(path);
    for (auto r = rules_.rbegin(); r != rules_.rend(); ++r)
        if ((is_folder || !r->needs_folder) && names_match(r->names, names)) return !r->is_negated;
    return false;
}

SKEIN_INLINE bool ignore_rules::leaves_out(std::string_view path, bool is_folder) {
    if (rules_.empty()) return false;
    const auto slash = path.rfind('/');
    if (slash != std::string_view::npos) {
        const auto folder = path.substr(0, slash);
        const auto known = folders_.find(std::string(folder));
        const bool out = known != folders_.end() ? known->second : leaves_out(folder, true);
        if (known == folders_.end()) folders_.emplace(folder, out);
        if (out) return true;
    }
    return matches(path, is_folder);
}

} // namespace skein::cluster::detail
