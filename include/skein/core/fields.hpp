// SPDX-License-Identifier: Apache-2.0
#pragma once
// THE door to Boost.PFR: number, references and names of the fields of a plain aggregate.
//
// An aggregate here is a class without constructors, bases, references and C arrays (PFR would
// flatten those: use std::array). Names need a type with linkage: not local to a function, not in
// an unnamed namespace. Names are cut out of the pretty name of a function whose template argument
// points at the field: PFR knows names from 2.2 on (Boost 1.84), but in a header of its own, and
// one way for every version gives one schema hash. g++ 12 ends with an internal error at an array
// field of a type with constructors, unless its default is spelled with parentheses:
// std::array<std::string, 2> names = std::array<std::string, 2>();
//
//     struct point { int x = 0, y = 0; };
//     field_count<point> == 2, field_name<point, 1>() == "y"

#include <skein/core/config.hpp>

#include <cstddef>
#include <memory>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include <boost/pfr/core.hpp>

namespace skein {

namespace detail {

/// Becomes a base of T, and nothing else.
template <class T>
struct any_base {
    template <class B>
        requires(std::is_base_of_v<B, T> && !std::is_same_v<B, T>)
    operator B() const;
};
/// Bases are initialised first.
template <class T>
concept has_base = requires { T{any_base<T>{}}; };

struct anything {
    template <class V>
    operator V() const;
};
template <class T, std::size_t... Before, std::size_t... After>
consteval bool takes_braces_between(std::index_sequence<Before...>, std::index_sequence<After...>) {
    return requires { T{(void(Before), anything{})..., {}, (void(After), anything{})...}; };
}
/// One pair of braces in the place of the array that starts at element At takes all its elements.
template <class T, std::size_t Count, std::size_t At>
consteval bool array_starts_at() {
    using before = std::make_index_sequence<At>;
    if (takes_braces_between<T>(before{}, std::make_index_sequence<Count - At - 1>{})) return false;
    return []<std::size_t... K>(std::index_sequence<K...>) {
        return (takes_braces_between<T>(before{}, std::make_index_sequence<K>{}) || ...);
    }(std::make_index_sequence<Count - At - 1>{});
}
/// N fields that can each be made from {}: then none is an array. The usual case, answered at once.
template <class T, std::size_t N>
consteval bool takes_braces() {
    // clang-format off
    if constexpr (N < 2) return true;
    else if constexpr (N == 2) return requires { T{{}, {}}; };
    else if constexpr (N == 3) return requires { T{{}, {}, {}}; };
    else if constexpr (N == 4) return requires { T{{}, {}, {}, {}}; };
    else if constexpr (N == 5) return requires { T{{}, {}, {}, {}, {}}; };
    else if constexpr (N == 6) return requires { T{{}, {}, {}, {}, {}, {}}; };
    else if constexpr (N == 7) return requires { T{{}, {}, {}, {}, {}, {}, {}}; };
    else if constexpr (N == 8) return requires { T{{}, {}, {}, {}, {}, {}, {}, {}}; };
    else if constexpr (N == 9) return requires { T{{}, {}, {}, {}, {}, {}, {}, {}, {}}; };
    else if constexpr (N == 10) return requires { T{{}, {}, {}, {}, {}, {}, {}, {}, {}, {}}; };
    else if constexpr (N == 11) return requires { T{{}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}}; };
    else if constexpr (N == 12) return requires { T{{}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}}; };
    else if constexpr (N == 13) return requires { T{{}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}}; };
    else if constexpr (N == 14) return requires { T{{}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}}; };
    else if constexpr (N == 15) return requires { T{{}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}}; };
    else if constexpr (N == 16) return requires { T{{}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}}; };
    else return false;
    // clang-format on
}
template <class T, std::size_t... I>
consteval bool holds_array(std::index_sequence<I...>) {
    if constexpr (takes_braces<T, sizeof...(I)>())
        return false;
    else
        return (array_starts_at<T, sizeof...(I), I>() || ...);
}

} // namespace detail

/// The number of fields of a plain aggregate.
template <class T>
inline constexpr std::size_t field_count = boost::pfr::tuple_size_v<T>;

namespace detail {
/// PFR would take the elements of a C array for fields.
template <class T>
concept has_array = holds_array<T>(std::make_index_sequence<field_count<T>>{});
} // namespace detail

/// A type whose fields can be listed.
template <class T>
concept plain_aggregate = std::is_aggregate_v<T> && std::is_class_v<T> && !requires {
    std::tuple_size<T>::value;
} && !detail::has_base<T> && !detail::has_array<T>;

/// The type of field I.
template <class T, std::size_t I>
using field_type = boost::pfr::tuple_element_t<I, T>;

/// References to all fields, as a std::tuple.
template <class T>
constexpr auto tie_fields(T& object) noexcept {
    return boost::pfr::structure_tie(object);
}

namespace detail {

template <class T>
struct fields_of_nothing {
    const T value;
};
#if defined(__clang__)
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wundefined-var-template"
#pragma clang diagnostic ignored "-Wundefined-internal"
#endif
/// Declared, never defined: only addresses inside it are named at compile time.
template <class T>
extern const fields_of_nothing<T> fake_object;

template <class Pointer>
struct pointer_value {
    Pointer pointer;
};
template <class Pointer>
pointer_value(Pointer) -> pointer_value<Pointer>;

template <class T, auto Field>
consteval const char* field_pretty_name() {
    return __PRETTY_FUNCTION__;
}

/// The last identifier of "... Field = {&fake_object.value.name}]".
consteval std::string_view last_identifier(std::string_view text) {
    const auto is_word = [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
               c == '_';
    };
    std::size_t end = text.size();
    while (end > 0 && !is_word(text[end - 1])) --end;
    std::size_t begin = end;
    while (begin > 0 && is_word(text[begin - 1])) --begin;
    return text.substr(begin, end - begin);
}
} // namespace detail

/// The name of field I as it is written in the source.
template <class T, std::size_t I>
consteval std::string_view field_name() {
    constexpr auto field = detail::pointer_value{
        std::addressof(std::get<I>(boost::pfr::structure_tie(detail::fake_object<T>.value)))};
    return detail::last_identifier(detail::field_pretty_name<T, field>());
}
#if defined(__clang__)
#pragma clang diagnostic pop
#endif

namespace detail {
struct field_name_probe {
    int first_one = 0;
    double second2 = 0;
};
static_assert(
    field_name<field_name_probe, 0>() == "first_one" &&
        field_name<field_name_probe, 1>() == "second2",
    "this compiler spells __PRETTY_FUNCTION__ in an unknown way: cut the field's name out of it");
} // namespace detail

} // namespace skein
