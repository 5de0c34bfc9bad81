// SPDX-License-Identifier: Apache-2.0
#pragma once
// An aggregate of numbers and texts as JSON by the names of its fields, for result.json. Written by
// hand: the JSON library is 130,000 lines, and this is compiled where a loop is named.

#include <skein/core/fields.hpp>
#include <skein/wire/codec.hpp>

#include <cmath>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include <fmt/format.h>

namespace skein::train::detail {

/// A text in quotes.
[[nodiscard]] std::string quoted_text(std::string_view text);

/// Numbers, truths, enums (their number), texts, optionals, lists, maps by text, and aggregates of
/// those. `Above` are the aggregates that T is inside of.
template <class T, class... Above>
consteval bool has_value_text() {
    if constexpr (std::is_same_v<T, long double> || std::is_same_v<T, char> ||
                  wire::detail::is_one_of<T, Above...> || wire::detail::custom<T>)
        return false;
    else if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T> ||
                       std::is_same_v<T, std::string>)
        return true;
    else if constexpr (wire::detail::is_a<T, std::vector> || wire::detail::is_array<T> ||
                       wire::detail::is_a<T, std::optional>)
        return has_value_text<typename T::value_type, Above...>();
    else if constexpr (wire::detail::is_map<T>)
        return std::is_same_v<typename T::key_type, std::string> &&
               has_value_text<typename T::mapped_type, Above...>();
    else if constexpr (plain_aggregate<T>)
        return wire::detail::all_fields<T>(
            []<class F>() { return has_value_text<std::remove_cvref_t<F>, T, Above...>(); });
    else
        return false;
}

template <class T>
void add_value_text(std::string& out, const T& value);

template <class T>
void add_fields_text(std::string& out, const T& value) {
    const auto fields = tie_fields(value);
    out += '{';
    [&]<std::size_t... I>(std::index_sequence<I...>) {
        (..., (out += I > 0 ? ", " : "", out += quoted_text(field_name<T, I>()), out += ": ",
               add_value_text(out, std::get<I>(fields))));
    }(std::make_index_sequence<field_count<T>>{});
    out += '}';
}

template <class T>
void add_value_text(std::string& out, const T& value) {
    if constexpr (std::is_same_v<T, bool>) {
        out += value ? "true" : "false";
    } else if constexpr (std::is_enum_v<T>) {
        out += fmt::format("{}", static_cast<std::int64_t>(value));
    } else if constexpr (std::is_floating_point_v<T>) {
        out += std::isfinite(value) ? fmt::format("{}", value) : std::string("null");
    } else if constexpr (std::is_arithmetic_v<T>) {
        out += fmt::format("{}", +value);
    } else if constexpr (std::is_same_v<T, std::string>) {
        out += quoted_text(value);
    } else if constexpr (wire::detail::is_a<T, std::optional>) {
        value ? add_value_text(out, *value) : void(out += "null");
    } else if constexpr (wire::detail::is_map<T>) {
        out += '{';
        for (bool first = true; const auto& [key, item] : value) {
            out += std::exchange(first, false) ? "" : ", ";
            out += quoted_text(key) + ": ";
            add_value_text(out, item);
        }
        out += '}';
    } else if constexpr (plain_aggregate<T>) {
        add_fields_text(out, value);
    } else {
        out += '[';
        for (bool first = true; const auto& item : value) {
            out += std::exchange(first, false) ? "" : ", ";
            add_value_text<typename T::value_type>(out, item);
        }
        out += ']';
    }
}

/// Empty for a type that has no text.
template <class T>
std::string value_text(const T& value) {
    std::string out;
    if constexpr (has_value_text<T>()) add_value_text(out, value);
    return out;
}

} // namespace skein::train::detail
