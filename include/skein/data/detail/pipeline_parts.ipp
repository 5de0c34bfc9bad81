// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/data/detail/pipeline_parts.hpp>.

#include <skein/core/error.hpp>

#include <algorithm>
#include <cctype>
#include <cmath>

#include <fmt/core.h>

namespace skein::data::detail {

SKEIN_INLINE void rethrow_in_operator(const std::string& what) {
    auto why = to_error(std::current_exception(), errc::invalid_argument);
    throw std::move(why).with_where(why.where().empty() ? what : what + ", " + why.where());
}

SKEIN_INLINE std::string short_name(const std::type_info& of) {
    auto name = type_name(of);
    name.resize(std::min(name.find('<'), name.size()));
    const auto at = name.rfind("::");
    return at == std::string::npos ? name : name.substr(at + 2);
}

SKEIN_INLINE std::string function_name(const std::type_info& of) {
    // "map_operator<&ns::draw>" under clang, "map_operator<ns::draw>" or with a signature under g++.
    auto name = type_name(of);
    name = name.substr(std::min(name.find('<'), name.size()));
    if (name.find("lambda") != std::string::npos) return "lambda";
    // Up to the signature, if there is one: "(&(ns::draw(long, ...)))".
    std::size_t from = 0;
    while (from < name.size() && (name[from] == '<' || name[from] == '(' || name[from] == '&'))
        from += 1;
    name = name.substr(from);
    name.resize(std::min(name.find_first_of("(>"), name.size()));
    const auto at = name.rfind("::");
    return at == std::string::npos ? name : name.substr(at + 2);
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
