// SPDX-License-Identifier: Apache-2.0
#pragma once
// The names that there are, for an error about one that there is not.
//
//     throw error(errc::not_found, fmt::format("there is no actor named \"{}\"; {}", name,
//                                              known_names(actors, "none has a name")));
//
// gives: there is no actor named "tabel"; there are: "log", "table" and 3 more

#include <skein/core/config.hpp>

#include <cstddef>
#include <iterator>
#include <string>
#include <string_view>

#include <fmt/format.h>

namespace skein {

/// Gathers names in the order in which they are to be shown.
class name_list {
public:
    static constexpr std::size_t shown = 8;

    /// One more; control characters of it become '?'.
    void add(std::string_view name);
    /// `there are: "a", "b" and 3 more`; without any name `none`.
    [[nodiscard]] std::string text(std::string_view none) const;

private:
    std::string list_;
    std::size_t count_ = 0;
};

/// The names of a range of texts, or the keys of a map.
template <class Names>
[[nodiscard]] std::string known_names(const Names& names,
                                      std::string_view none = "there are none") {
    name_list list;
    for (const auto& one : names) {
        if constexpr (requires { one.first; })
            list.add(one.first);
        else
            list.add(one);
    }
    return list.text(none);
}

/// All of a range: `a, b, c`.
template <class Values>
[[nodiscard]] std::string joined(const Values& values, std::string_view between) {
    std::string out;
    bool is_first = true;
    for (const auto& one : values) {
        if (!is_first) out += between;
        is_first = false;
        fmt::format_to(std::back_inserter(out), "{}", one);
    }
    return out;
}

} // namespace skein

#if SKEIN_HEADER_ONLY
#include <skein/core/detail/known_names.ipp>
#endif
