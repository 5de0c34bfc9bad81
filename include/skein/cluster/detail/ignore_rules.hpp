// SPDX-License-Identifier: Apache-2.0
#pragma once
// Patterns with the syntax of a .gitignore, for one file of them at the top of a folder.

#include <skein/core/config.hpp>

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace skein::cluster::detail {

/// Whether `*`, `?`, `[a-z]`, `[!a-z]`, `[[:digit:]]` and `\x` of a pattern match a whole name.
[[nodiscard]] bool glob_matches(std::string_view pattern, std::string_view name) noexcept;

/// The last pattern that matches decides; what is in a folder that is left out is out, too.
class ignore_rules {
public:
    ignore_rules() = default;
    explicit ignore_rules(std::string_view text);

    /// Whether a path itself matches, whatever the folders above it.
    [[nodiscard]] bool matches(std::string_view path, bool is_folder) const;
    /// Whether a path, or a folder above it, matches.
    [[nodiscard]] bool leaves_out(std::string_view path, bool is_folder);
    [[nodiscard]] bool empty() const noexcept { return rules_.empty(); }

private:
    struct rule {
        std::vector<std::string> names; ///< of the pattern; "**": any number of names
        bool is_negated = false, needs_folder = false;
    };
    void add(std::string_view line);

    std::vector<rule> rules_;
    std::unordered_map<std::string, bool> folders_; ///< what leaves_out() has said of them
};

} // namespace skein::cluster::detail

#if SKEIN_HEADER_ONLY
#include <skein/cluster/detail/ignore_rules.ipp>
#endif
