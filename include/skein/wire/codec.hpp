// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which types travel: the concept `encodable`, and how a type of your own joins in.
//
// Encodable are: bool, integers, float, double, enums, std::byte, strings, vector, array, span of
// fixed-layout elements, map, set and their unordered forms, optional, variant, pair, tuple,
// durations, strong ids, skein::error, result<T>, and plain aggregates of those. Anything else
// specialises codec:
//
//     template <> struct skein::wire::codec<matrix> {
//         static constexpr std::string_view schema = "matrix";
//         static void encode(writer& out, const matrix& m);
//         static result<void> decode(reader& in, matrix& m);
//     };

#include <skein/core/fields.hpp>
#include <skein/core/ids.hpp>
#include <skein/core/result.hpp>
#include <skein/core/time.hpp>
#include <skein/wire/reader.hpp>
#include <skein/wire/writer.hpp>

#include <array>
#include <chrono>
#include <map>
#include <optional>
#include <ratio>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <variant>
#include <vector>

namespace skein::wire {

/// The customisation point; specialise it for a type that is not a plain aggregate.
template <class T>
struct codec;

namespace detail {

template <class T, template <class...> class Template>
inline constexpr bool is_a = false;
template <template <class...> class Template, class... Args>
inline constexpr bool is_a<Template<Args...>, Template> = true;

template <class T>
inline constexpr bool is_array = false;
template <class T, std::size_t N>
inline constexpr bool is_array<std::array<T, N>> = true;

template <class T>
inline constexpr bool is_span = false;
template <class T>
inline constexpr bool is_span<std::span<T>> = true;

template <class T>
inline constexpr bool is_id = false;
template <class Tag, class Rep>
inline constexpr bool is_id<strong_id<Tag, Rep>> = true;

template <class T>
inline constexpr bool is_duration = false;
template <class Rep, class Period>
inline constexpr bool is_duration<std::chrono::duration<Rep, Period>> = true;
template <>
inline constexpr bool is_duration<time_span> = true;

template <class T>
inline constexpr bool is_text =
    std::is_same_v<T, std::string> || std::is_same_v<T, std::string_view>;
template <class T>
inline constexpr bool is_map = is_a<T, std::map> || is_a<T, std::unordered_map>;
template <class T>
inline constexpr bool is_set = is_a<T, std::set> || is_a<T, std::unordered_set>;
template <class T>
inline constexpr bool is_tuple = is_a<T, std::pair> || is_a<T, std::tuple>;

/// An enum of which every value of the underlying integer is a valid one.
template <class T>
consteval bool is_open_enum() {
    if constexpr (std::is_enum_v<T>)
        return requires { T{0}; } && !std::is_same_v<std::underlying_type_t<T>, bool>;
    else
        return false;
}

/// Numbers whose memory is the same on every machine we run on.
template <class T>
inline constexpr bool is_scalar =
    (std::is_arithmetic_v<T> && !std::is_same_v<T, long double> && !std::is_same_v<T, wchar_t>) ||
    is_open_enum<T>();

template <class T>
concept custom = requires(writer& out, const T& in, reader& from, T& into) {
    codec<T>::encode(out, in);
    { codec<T>::decode(from, into) } -> std::same_as<result<void>>;
};

template <class T, class... Others>
inline constexpr bool is_one_of = (std::is_same_v<T, Others> || ...);

/// Calls f.template operator()<Field>() for every field type and combines the bools by "and".
template <class T, class F>
consteval bool all_fields(F f) {
    return [&]<std::size_t... I>(std::index_sequence<I...>) {
        return (f.template operator()<field_type<T, I>>() && ...);
    }(std::make_index_sequence<field_count<T>>{});
}

/// Fixed layout: encoding a T is copying its memory. Aggregates must have no padding.
template <class T>
consteval bool is_fixed() {
    if constexpr (custom<T> || !std::is_trivially_copyable_v<T>)
        return false;
    else if constexpr (is_scalar<T>)
        return !std::is_same_v<T, bool>;
    else if constexpr (is_id<T> || is_duration<T>)
        return is_fixed<typename T::rep>();
    else if constexpr (is_array<T>)
        return std::tuple_size_v<T> > 0 && is_fixed<typename T::value_type>();
    else if constexpr (is_span<T> || is_text<T> || is_a<T, std::optional> ||
                       is_a<T, std::variant> || is_tuple<T> || std::is_same_v<T, std::monostate>)
        return false;
    else if constexpr (plain_aggregate<T>) {
        if constexpr (field_count<T> == 0)
            return false;
        else
            return all_fields<T>([]<class F>() { return is_fixed<F>(); }) &&
                   []<std::size_t... I>(std::index_sequence<I...>) {
                       return (sizeof(field_type<T, I>) + ...) == sizeof(T);
                   }(std::make_index_sequence<field_count<T>>{});
    } else
        return false;
}

/// `Above` are the aggregates that T is inside of: a tree may hold vectors of itself.
template <class T, class... Above>
consteval bool is_encodable() {
    if constexpr (is_one_of<T, Above...> || custom<T> || is_scalar<T> || is_text<T> ||
                  std::is_same_v<T, std::monostate> || std::is_same_v<T, skein::error>)
        return true;
    else if constexpr (is_id<T> || is_duration<T>)
        return is_scalar<typename T::rep>;
    else if constexpr (is_span<T>)
        return is_fixed<std::remove_cv_t<typename T::element_type>>();
    else if constexpr (is_a<T, std::vector> || is_array<T> || is_set<T> || is_a<T, std::optional>)
        return is_encodable<typename T::value_type, Above...>();
    else if constexpr (is_a<T, result>) {
        if constexpr (std::is_void_v<typename T::value_type>)
            return true;
        else
            return is_encodable<typename T::value_type, Above...>();
    } else if constexpr (is_map<T>)
        return is_encodable<typename T::key_type, Above...>() &&
               is_encodable<typename T::mapped_type, Above...>();
    else if constexpr (is_tuple<T> || is_a<T, std::variant>)
        return []<template <class...> class Template, class... Items>(const Template<Items...>*) {
            return (is_encodable<std::remove_cvref_t<Items>, Above...>() && ...);
        }(static_cast<const T*>(nullptr));
    else if constexpr (plain_aggregate<T>)
        return all_fields<T>([]<class F>() { return is_encodable<F, T, Above...>(); });
    else
        return false;
}

/// A lower bound of the bytes that any T takes on the wire.
template <class T>
consteval std::size_t least_size() {
    if constexpr (custom<T>)
        return 1;
    else if constexpr (std::is_same_v<T, skein::error>)
        return sizeof(errc) + 4;
    else if constexpr (is_scalar<T> || is_id<T> || is_duration<T>)
        return sizeof(T);
    else if constexpr (std::is_same_v<T, std::monostate>)
        return 0;
    else if constexpr (is_array<T>)
        return std::tuple_size_v<T> * least_size<typename T::value_type>();
    else if constexpr (is_tuple<T>)
        return []<template <class...> class Template, class... Items>(const Template<Items...>*) {
            return (std::size_t{0} + ... + least_size<std::remove_cvref_t<Items>>());
        }(static_cast<const T*>(nullptr));
    else if constexpr (is_text<T> || is_span<T> || is_a<T, std::vector> || is_map<T> || is_set<T> ||
                       is_a<T, std::optional> || is_a<T, std::variant> || is_a<T, result>)
        return 1;
    else
        return []<std::size_t... I>(std::index_sequence<I...>) {
            return (std::size_t{0} + ... + least_size<field_type<T, I>>());
        }(std::make_index_sequence<field_count<T>>{});
}

/// Where the elements of a sequence of fixed-layout T start: a multiple of this. Blobs of bytes
/// start at 8, so that messages inside messages keep their alignment.
template <class T>
inline constexpr std::size_t sequence_alignment = std::is_same_v<T, std::byte> ? 8 : alignof(T);

/// What readers and writers count for one element of a map or set, and for an error.
template <class T>
inline constexpr std::size_t node_memory = sizeof(typename T::value_type) + 4 * sizeof(void*);
inline constexpr std::size_t error_memory = 256; // what it keeps on the heap

} // namespace detail

/// A type that encode() and decode() know.
template <class T>
concept encodable = detail::is_encodable<std::remove_cvref_t<T>>();

/// A type whose encoding is a copy of its memory; spans of it are viewed in place.
template <class T>
concept fixed_layout = detail::is_fixed<T>();

} // namespace skein::wire
