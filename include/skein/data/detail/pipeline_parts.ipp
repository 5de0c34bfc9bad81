// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/data/detail/pipeline_parts.hpp>.

#include <algorithm>
#include <cctype>
#include <cmath>
#include <new>
#include <utility>

#include <fmt/core.h>

namespace skein::data::detail {

SKEIN_INLINE error error_of_throw(std::exception_ptr thrown) {
    try {
        std::rethrow_exception(thrown);
    } catch (const std::bad_alloc&) {
        return error(errc::exhausted, "no memory (std::bad_alloc)");
    } catch (...) {
        return to_error(std::move(thrown), errc::invalid_argument);
    }
}

SKEIN_INLINE void rethrow_in_operator(const std::string& what) {
    auto why = error_of_throw(std::current_exception());
    throw std::move(why).with_where(why.where().empty() ? what : what + ", " + why.where());
}

/// Places in a name that are in no brackets and hold this character.
struct outer_place {
    std::size_t first = std::string::npos, last = std::string::npos;
};
SKEIN_INLINE outer_place outside_brackets(std::string_view name, char wanted) {
    outer_place found;
    int depth = 0;
    for (std::size_t i = 0; i < name.size(); ++i) {
        const char c = name[i];
        if (depth == 0 && c == wanted) {
            if (found.first == std::string::npos) found.first = i;
            found.last = i;
        }
        depth += c == '<' || c == '(' ? 1 : c == '>' || c == ')' ? -1 : 0;
    }
    return found;
}

/// Without "(anonymous namespace)::", which compilers spell in their own ways.
SKEIN_INLINE std::string named_type(const std::type_info& of) {
    auto name = type_name(of);
    for (const std::string_view nameless : {"(anonymous namespace)::", "{anonymous}::"})
        for (auto at = name.find(nameless); at != std::string::npos; at = name.find(nameless))
            name.erase(at, nameless.size());
    return name;
}

SKEIN_INLINE std::string short_name(const std::type_info& of) {
    const auto name = named_type(of);
    if (name.find("lambda") != std::string::npos || name.find("$_") != std::string::npos)
        return "lambda";
    const auto at = outside_brackets(name, ':').last; // what a template was made with stays
    return at == std::string::npos ? name : name.substr(at + 1);
}

SKEIN_INLINE std::string function_name(const std::type_info& of) {
    // "map_operator<&ns::draw>"; of a template with all of it: "map_operator<&(ns::row ns::cut<64>(long))>".
    auto name = named_type(of);
    const auto end = std::min(name.rfind('>'), name.size());
    const auto begin = std::min(name.find('<'), end);
    name = name.substr(begin, end - begin);
    if (name.find("lambda") != std::string::npos || name.find("$_") != std::string::npos)
        return "lambda";
    std::string_view rest = name;
    rest.remove_prefix(std::min(rest.find_first_not_of("<(&"), rest.size()));
    rest = rest.substr(0, outside_brackets(rest, '(').first); // the signature
    if (const auto at = outside_brackets(rest, ' ').last; at != std::string::npos)
        rest.remove_prefix(at + 1); // what it gives
    if (const auto at = outside_brackets(rest, ':').last; at != std::string::npos)
        rest.remove_prefix(at + 1);
    while (rest.ends_with(')') && outside_brackets(rest, ')').last == rest.size() - 1)
        rest.remove_suffix(1);
    return std::string(rest);
}

SKEIN_INLINE std::string number_text(float value) { return fmt::format("{}", value); }

SKEIN_INLINE void selection::keep(std::uint64_t first, std::uint64_t count) noexcept {
    const auto held = end > begin ? end - begin : 0;
    const auto skipped = std::min(first, held);
    begin += skipped;
    end = begin + std::min(count, held - skipped);
}

SKEIN_INLINE std::uint64_t selection::split(std::uint64_t of, double fraction, std::uint64_t seed) {
    if (!(fraction >= 0 && fraction <= 1))
        throw error(errc::invalid_argument,
                    fmt::format("a pipeline cannot be split at {}", fraction))
            .with_hint("give the part of the first one, from 0 to 1");
    if (is_split || begin != 0 || end != ~std::uint64_t{0})
        throw error(errc::not_supported,
                    "not supported: a split of a pipeline that is split or cut already")
            .with_hint("split first, then take or skip of the parts");
    if (of == 0) return 0;
    is_split = true;
    key = seed * 0x9e3779b97f4a7c15ULL + 0x5bf0a8b145769337ULL;
    end = of;
    return static_cast<std::uint64_t>(std::llround(fraction * static_cast<double>(of)));
}

SKEIN_INLINE std::string selection::describe() const {
    std::string line;
    if (is_split) line += fmt::format(" | split({:x})", key);
    if (begin != 0) line += fmt::format(" | skip({})", begin);
    if (end != ~std::uint64_t{0}) line += fmt::format(" | take({})", end - begin);
    return line;
}

} // namespace skein::data::detail
