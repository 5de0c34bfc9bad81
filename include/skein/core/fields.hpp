// SPDX-License-Identifier: Apache-2.0
#pragma once
// THE door to Boost.PFR: number, references and names of the fields of a plain aggregate.
//
// An aggregate here is a class without constructors, bases, references and C arrays (PFR would
// flatten those: use std::array). Names need a type with linkage: not local to a function, not in
// an unnamed namespace. Names are cut out of the pretty name of a function whose template argument
// points at the field: PFR knows names from 2.2 on (Boost 1.84), but in a header of its own, and one
// way for every version gives one schema hash. g++ 12 ends with an internal error at an array field
// of a type with constructors, unless its default is spelled with parentheses:
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

/// A type whose fields can be listed.
template <class T>
concept plain_aggregate =
    std::is_aggregate_v<T> && std::is_class_v<T> && !requires { std::tuple_size<T>::value; };

template <class T>
inline constexpr std::size_t field_count = boost::pfr::tuple_size_v<T>;

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
static_assert(field_name<field_name_probe, 0>() == "first_one" &&
                  field_name<field_name_probe, 1>() == "second2",
              "this compiler spells __PRETTY_FUNCTION__ in an unknown way: cut the field's name out of it");
} // namespace detail

} // namespace skein
