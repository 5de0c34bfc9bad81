// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bytes to values. The bytes may come from anywhere: nothing throws (but std::bad_alloc), memory is
// bounded by the size of the input and limits::max_memory, and the first fault is told with its
// position.
//
//     auto request = wire::decode<submit>(frame.body);      // result<submit>
//     if (!request) return request.error();
//
// Fields of type std::span<const T> and std::string_view become views into the input: keep it.

#include <skein/wire/codec.hpp>

#include <algorithm>

namespace skein::wire {

namespace detail {

/// A value to decode into.
template <class T>
T fresh() {
    if constexpr (std::is_same_v<T, skein::error>)
        return skein::error(errc::unknown, "");
    else if constexpr (is_a<T, result> && !std::is_default_constructible_v<T>)
        return T(skein::error(errc::unknown, ""));
    else if constexpr (is_tuple<T> && !std::is_default_constructible_v<T>)
        return []<template <class...> class Template, class... Items>(const Template<Items...>*) {
            return T(fresh<Items>()...);
        }(static_cast<const T*>(nullptr));
    else {
        static_assert(
            std::is_default_constructible_v<T>,
            "a type that is decoded needs a default constructor (or defaults on every field)");
        return T{};
    }
}

template <class T>
bool read(reader& in, T& value);

struct depth_guard {
    explicit depth_guard(reader& from) : in(from), entered(from.enter()) {}
    depth_guard(const depth_guard&) = delete;
    depth_guard& operator=(const depth_guard&) = delete;
    ~depth_guard() {
        if (entered) in.leave();
    }
    reader& in;
    bool entered;
};

inline bool read_bool(reader& in, bool& value) {
    std::uint8_t byte = 0;
    if (!in.fixed(byte)) return false;
    if (byte > 1) return in.fail(errc::malformed, fmt::format("{} is not a truth value", byte));
    value = byte == 1;
    return true;
}

/// The bytes of a sequence of fixed-layout T, still in the input.
template <class T>
bool read_block(reader& in, byte_span& block, std::size_t& n) {
    return in.count(sizeof(T), n) && in.align(sequence_alignment<T>) &&
           in.raw(n * sizeof(T), block);
}

template <class T>
bool is_aligned_for(const std::byte* address) noexcept {
    return reinterpret_cast<std::uintptr_t>(address) % alignof(T) == 0;
}

template <class T>
bool read_vector(reader& in, std::vector<T>& value) {
    value.clear();
    if constexpr (is_fixed<T>()) {
        byte_span block;
        std::size_t n = 0;
        if (!read_block<T>(in, block, n)) return false;
        if (is_aligned_for<T>(block.data())) { // copies once, without clearing first
            const auto* items = reinterpret_cast<const T*>(block.data());
            value.assign(items, items + n);
        } else {
            value.resize(n);
            if (n > 0) std::memcpy(static_cast<void*>(value.data()), block.data(), block.size());
        }
        return true;
    } else {
        static_assert(least_size<T>() > 0, "elements of a container take at least one byte");
        std::size_t n = 0;
        if (!in.count(least_size<T>(), n) || !in.charge(n, sizeof(T))) return false;
        const depth_guard deeper(in);
        if (!deeper.entered) return false;
        // An element in memory may be much larger than on the wire: grow with what has been read.
        value.reserve(std::min<std::size_t>(n, std::max<std::size_t>(1, 4096 / sizeof(T))));
        for (std::size_t i = 0; i < n; ++i) {
            if constexpr (std::is_same_v<T, bool>) {
                bool item = false;
                if (!read_bool(in, item)) return false;
                value.push_back(item);
            } else {
                value.push_back(fresh<T>());
                if (!read(in, value.back())) return false;
            }
        }
        return true;
    }
}

template <class T>
bool read_keyed(reader& in, T& value) {
    using key = typename T::key_type;
    value.clear();
    std::size_t n = 0;
    constexpr auto least = [] {
        if constexpr (is_map<T>)
            return least_size<key>() + least_size<typename T::mapped_type>();
        else
            return least_size<key>();
    }();
    static_assert(least > 0, "elements of a container take at least one byte");
    if (!in.count(least, n)) return false;
    const depth_guard deeper(in);
    if (!deeper.entered) return false;
    for (std::size_t i = 0; i < n; ++i) {
        if (!in.charge(1, node_memory<T>)) return false;
        auto k = fresh<key>();
        if (!read(in, k)) return false;
        bool is_new = false;
        if constexpr (is_map<T>) {
            auto mapped = fresh<typename T::mapped_type>();
            if (!read(in, mapped)) return false;
            is_new = value.emplace(std::move(k), std::move(mapped)).second;
        } else {
            is_new = value.insert(std::move(k)).second;
        }
        if (!is_new) return in.fail(errc::malformed, "a key that was there already");
    }
    return true;
}

template <class T, std::size_t I = 0>
bool read_alternative(reader& in, std::size_t index, T& value) {
    if constexpr (I == std::variant_size_v<T>) {
        return in.fail(errc::malformed, fmt::format("{} is not one of {} kinds", index, I));
    } else {
        if (index != I) return read_alternative<T, I + 1>(in, index, value);
        auto held = fresh<std::variant_alternative_t<I, T>>();
        if (!read(in, held)) return false;
        value.template emplace<I>(std::move(held));
        return true;
    }
}

inline bool read_error(reader& in, skein::error& value) {
    errc code{};
    std::string text, where, cause, hint;
    if (!in.charge(1, error_memory)) return false;
    if (!in.fixed(code) || !read(in, text) || !read(in, where) || !read(in, cause) ||
        !read(in, hint))
        return false;
    value = skein::error(code, std::move(text));
    if (!where.empty()) value.with_where(std::move(where));
    if (!cause.empty()) value.with_cause(std::move(cause));
    if (!hint.empty()) value.with_hint(std::move(hint));
    return true;
}

template <class T>
bool read_result(reader& in, T& value) {
    bool has_value = false;
    if (!read_bool(in, has_value)) return false;
    if (!has_value) {
        auto e = fresh<skein::error>();
        if (!read_error(in, e)) return false;
        value = T(std::move(e));
    } else if constexpr (std::is_void_v<typename T::value_type>) {
        value = T{};
    } else {
        const depth_guard deeper(in);
        auto held = fresh<typename T::value_type>();
        if (!deeper.entered || !read(in, held)) return false;
        value = T(std::move(held));
    }
    return true;
}

template <class T>
bool read_span(reader& in, T& value) {
    using item = std::remove_const_t<typename T::element_type>;
    static_assert(std::is_const_v<typename T::element_type>,
                  "decode into std::span<const T>: the view points into the input");
    static_assert(alignof(item) <= 8, "views are aligned to 8 bytes at most");
    byte_span block;
    std::size_t n = 0;
    if (!read_block<item>(in, block, n)) return false;
    if (!is_aligned_for<item>(block.data()))
        return in.fail(errc::invalid_argument, "the input does not start at a multiple of 8 in "
                                               "memory, so its elements cannot be viewed in place; "
                                               "decode into a vector");
    value = T(reinterpret_cast<const item*>(block.data()), n);
    return true;
}

template <class T>
bool read(reader& in, T& value) {
    if constexpr (custom<T>) {
        if (auto done = codec<T>::decode(in, value); !done) return in.fail(done.error());
        return in.ok();
    } else if constexpr (std::is_same_v<T, skein::error>) {
        return read_error(in, value);
    } else if constexpr (std::is_same_v<T, bool>) {
        return read_bool(in, value);
    } else if constexpr (is_fixed<T>()) {
        return in.fixed(value);
    } else if constexpr (is_text<T>) {
        byte_span block;
        std::size_t n = 0;
        if (!read_block<char>(in, block, n)) return false;
        value = as_text(block);
        return true;
    } else if constexpr (is_span<T>) {
        return read_span(in, value);
    } else if constexpr (is_a<T, std::vector>) {
        return read_vector(in, value);
    } else if constexpr (is_array<T>) {
        return std::all_of(value.begin(), value.end(), [&](auto& item) { return read(in, item); });
    } else if constexpr (is_map<T> || is_set<T>) {
        return read_keyed(in, value);
    } else if constexpr (is_a<T, std::optional>) {
        bool has_value = false;
        if (!read_bool(in, has_value)) return false;
        value.reset();
        if (!has_value) return true;
        const depth_guard deeper(in);
        if (!deeper.entered) return false;
        value.emplace(fresh<typename T::value_type>());
        return read(in, *value);
    } else if constexpr (is_a<T, result>) {
        return read_result(in, value);
    } else if constexpr (is_a<T, std::variant>) {
        std::uint8_t index = 0;
        const depth_guard deeper(in);
        return deeper.entered && in.fixed(index) && read_alternative(in, index, value);
    } else if constexpr (is_tuple<T>) {
        return std::apply([&](auto&... items) { return (read(in, items) && ...); }, value);
    } else if constexpr (std::is_same_v<T, std::monostate>) {
        return true;
    } else {
        return std::apply([&](auto&... fields) { return (read(in, fields) && ...); },
                          tie_fields(value));
    }
}

} // namespace detail

/// Reads the next value; `into` is unspecified (but valid) after a failure.
template <encodable T>
result<void> decode(reader& in, T& into) {
    detail::read(in, into);
    return in.status();
}

/// Reads the next value.
template <encodable T>
result<T> decode(reader& in) {
    static_assert(!std::is_same_v<T, skein::error>,
                  "decode an error into an object: decode(in, e)");
    auto value = detail::fresh<T>();
    if (!detail::read(in, value)) return in.status().error();
    return value;
}

/// Decodes a whole message; bytes left over are malformed.
template <encodable T>
result<void> decode(byte_span bytes, T& into, limits bounds = {}) {
    reader in(bytes, bounds);
    if (detail::read(in, into)) in.finish();
    return in.status();
}

/// Decodes a whole message; bytes left over are malformed.
template <encodable T>
result<T> decode(byte_span bytes, limits bounds = {}) {
    static_assert(!std::is_same_v<T, skein::error>,
                  "decode an error into an object: decode(bytes, e)");
    reader in(bytes, bounds);
    auto value = detail::fresh<T>();
    if (detail::read(in, value) && in.finish()) return value;
    return in.status().error();
}

} // namespace skein::wire
