// SPDX-License-Identifier: Apache-2.0
#pragma once
// The shape of a type as text and as a 64-bit hash, equal on every compiler.
//
// Two builds compare hashes before they decode anything from each other. Field names and order
// count, the names of the types do not: "{id:u64,names:vec<str>}". A type inside itself is "^n",
// n aggregates up.

#include <skein/core/fnv.hpp>
#include <skein/wire/codec.hpp>

namespace skein::wire {

namespace detail {

/// FNV-1a, 64 bits, then mixed.
class hash_sink {
public:
    constexpr void operator()(std::string_view text) noexcept { hash_.text(text); }
    [[nodiscard]] constexpr std::uint64_t value() const noexcept {
        std::uint64_t x = hash_.value();
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
        x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
        return x ^ (x >> 31);
    }

private:
    fnv1a hash_;
};

struct text_sink {
    std::string text;
    void operator()(std::string_view piece) { text += piece; }
};

template <class Sink>
constexpr void describe_number(Sink& sink, std::uint64_t n) {
    char digits[20] = {};
    std::size_t at = sizeof digits;
    do digits[--at] = static_cast<char>('0' + n % 10);
    while ((n /= 10) != 0);
    sink(std::string_view(digits + at, sizeof digits - at));
}

template <class T>
consteval std::string_view scalar_name() {
    if constexpr (std::is_same_v<T, bool>)
        return "bool";
    else if constexpr (std::is_same_v<T, char>)
        return "char";
    else if constexpr (std::is_same_v<T, std::byte>)
        return "byte";
    else if constexpr (std::is_floating_point_v<T>)
        return sizeof(T) == 4 ? "f32" : "f64";
    else {
        constexpr std::string_view names[2][4] = {{"u8", "u16", "u32", "u64"},
                                                  {"i8", "i16", "i32", "i64"}};
        constexpr std::size_t width = sizeof(T) == 1   ? 0
                                      : sizeof(T) == 2 ? 1
                                      : sizeof(T) == 4 ? 2
                                                       : 3;
        return names[std::is_signed_v<T> ? 1 : 0][width];
    }
}

template <class T, class... Above>
consteval std::size_t levels_up() {
    constexpr bool same[] = {std::is_same_v<T, Above>...};
    std::size_t n = 0;
    while (!same[n]) ++n;
    return n;
}

template <class T, class... Above, class Sink>
constexpr void describe(Sink& sink);

template <class T, class... Above, class Sink>
constexpr void describe_items(Sink& sink, std::string_view name) {
    sink(name);
    [&]<template <class...> class Template, class... Items>(const Template<Items...>*) {
        bool first = true;
        ((first ? void(first = false) : sink(","),
          describe<std::remove_cvref_t<Items>, Above...>(sink)),
         ...);
    }(static_cast<const T*>(nullptr));
    sink(">");
}

template <class T, class... Above, class Sink>
constexpr void describe_fields(Sink& sink) {
    sink("{");
    [&]<std::size_t... I>(std::index_sequence<I...>) {
        ((sink(I == 0 ? "" : ","), sink(field_name<T, I>()), sink(":"),
          describe<field_type<T, I>, T, Above...>(sink)),
         ...);
    }(std::make_index_sequence<field_count<T>>{});
    sink("}");
}

/// What has parts: containers, and aggregates at last.
template <class T, class... Above, class Sink>
constexpr void describe_parts(Sink& sink) {
    if constexpr (is_span<T> || is_a<T, std::vector>) {
        sink("vec<");
        describe<std::remove_cv_t<typename T::value_type>, Above...>(sink);
        sink(">");
    } else if constexpr (is_array<T>) {
        sink("arr<");
        describe<typename T::value_type, Above...>(sink);
        sink(",");
        describe_number(sink, std::tuple_size_v<T>);
        sink(">");
    } else if constexpr (is_map<T>) {
        sink("map<");
        describe<typename T::key_type, Above...>(sink);
        sink(",");
        describe<typename T::mapped_type, Above...>(sink);
        sink(">");
    } else if constexpr (is_set<T> || is_a<T, std::optional> || is_a<T, result>) {
        sink(is_set<T> ? "set<" : is_a<T, std::optional> ? "opt<" : "res<");
        describe<typename T::value_type, Above...>(sink);
        sink(">");
    } else if constexpr (is_a<T, std::variant>) {
        describe_items<T, Above...>(sink, "var<");
    } else if constexpr (is_tuple<T>) {
        describe_items<T, Above...>(sink, "tup<");
    } else {
        describe_fields<T, Above...>(sink);
    }
}

template <class T, class... Above, class Sink>
constexpr void describe(Sink& sink) {
    if constexpr (is_one_of<T, Above...>) {
        sink("^");
        describe_number(sink, levels_up<T, Above...>());
    } else if constexpr (custom<T>) {
        if constexpr (requires { std::string_view(codec<T>::schema); })
            sink(codec<T>::schema);
        else
            sink("custom");
    } else if constexpr (std::is_void_v<T>) {
        sink("void");
    } else if constexpr (std::is_same_v<T, skein::error>) {
        sink("error");
    } else if constexpr (std::is_same_v<T, std::monostate>) {
        sink("unit");
    } else if constexpr (std::is_enum_v<T> && !std::is_same_v<T, std::byte>) {
        sink("enum<");
        sink(scalar_name<std::underlying_type_t<T>>());
        sink(">");
    } else if constexpr (is_scalar<T>) {
        sink(scalar_name<T>());
    } else if constexpr (is_id<T>) {
        sink("id<");
        sink(scalar_name<typename T::rep>());
        sink(">");
    } else if constexpr (is_duration<T>) {
        sink("dur<");
        sink(scalar_name<typename T::rep>());
        sink(",");
        describe_number(sink, T::period::num);
        sink("/");
        describe_number(sink, T::period::den);
        sink(">");
    } else if constexpr (is_text<T>) {
        sink("str");
    } else {
        describe_parts<T, Above...>(sink);
    }
}

} // namespace detail

/// The shape of T (void is allowed: the result of a function).
template <class T>
    requires(encodable<T> || std::is_void_v<T>)
[[nodiscard]] std::string schema_text() {
    detail::text_sink sink;
    detail::describe<std::remove_cvref_t<T>>(sink);
    return std::move(sink.text);
}

/// A hash of schema_text<T>(), at compile time.
template <class T>
    requires(encodable<T> || std::is_void_v<T>)
[[nodiscard]] consteval std::uint64_t schema_hash() {
    detail::hash_sink sink;
    detail::describe<std::remove_cvref_t<T>>(sink);
    return sink.value();
}

} // namespace skein::wire
