// SPDX-License-Identifier: Apache-2.0
#pragma once
// Values to bytes. The format is in docs/wire.md: little endian, no type information, lengths as
// variable-length numbers; schema.hpp hashes the shape so that both sides can compare it first.
//
//     byte_buffer message = wire::encode(request);

#include <skein/wire/codec.hpp>

namespace skein::wire {

template <encodable T>
void encode(writer& out, const T& value);

namespace detail {

template <class T>
void encode_sequence(writer& out, const T* items, std::size_t n) {
    out.varint(n);
    if constexpr (is_fixed<T>()) {
        out.align(sequence_alignment<T>);
        out.raw({reinterpret_cast<const std::byte*>(items), n * sizeof(T)});
    } else {
        out.charge(n, sizeof(T));
        const writer::level deeper(out);
        for (std::size_t i = 0; i < n; ++i) encode(out, items[i]);
    }
}

inline void encode_error(writer& out, const skein::error& e) {
    out.fixed(e.code());
    out.charge(1, error_memory);
    for (const auto* part : {&e.text(), &e.where(), &e.cause(), &e.hint()})
        encode_sequence(out, part->data(), part->size());
}

} // namespace detail

/// Appends one value.
///   errors  too_large: a reader with the limits of `out` would not take it; std::bad_alloc
template <encodable T>
void encode(writer& out, const T& value) {
    if constexpr (detail::custom<T>) {
        codec<T>::encode(out, value);
    } else if constexpr (std::is_same_v<T, skein::error>) {
        detail::encode_error(out, value);
    } else if constexpr (std::is_same_v<T, bool>) {
        out.fixed(static_cast<std::uint8_t>(value ? 1 : 0));
    } else if constexpr (detail::is_fixed<T>()) {
        out.fixed(value);
    } else if constexpr (detail::is_text<T> || detail::is_span<T>) {
        detail::encode_sequence(out, value.data(), value.size());
    } else if constexpr (std::is_same_v<T, std::vector<bool>>) {
        out.varint(value.size());
        out.charge(value.size(), sizeof(bool));
        const writer::level deeper(out);
        for (const bool item : value) encode(out, item);
    } else if constexpr (detail::is_a<T, std::vector>) {
        detail::encode_sequence(out, value.data(), value.size());
    } else if constexpr (detail::is_array<T>) {
        for (const auto& item : value) encode(out, item);
    } else if constexpr (detail::is_map<T>) {
        out.varint(value.size());
        out.charge(value.size(), detail::node_memory<T>);
        const writer::level deeper(out);
        for (const auto& [key, mapped] : value) {
            encode(out, key);
            encode(out, mapped);
        }
    } else if constexpr (detail::is_set<T>) {
        out.varint(value.size());
        out.charge(value.size(), detail::node_memory<T>);
        const writer::level deeper(out);
        for (const auto& item : value) encode(out, item);
    } else if constexpr (detail::is_a<T, std::optional>) {
        encode(out, value.has_value());
        if (!value) return;
        const writer::level deeper(out);
        encode(out, *value);
    } else if constexpr (detail::is_a<T, result>) {
        encode(out, value.has_value());
        if (!value) {
            detail::encode_error(out, value.error());
        } else if constexpr (!std::is_void_v<typename T::value_type>) {
            const writer::level deeper(out);
            encode(out, *value);
        }
    } else if constexpr (detail::is_a<T, std::variant>) {
        static_assert(std::variant_size_v<T> <= 256, "a variant on the wire has at most 256 kinds");
        const writer::level deeper(out);
        out.fixed(static_cast<std::uint8_t>(value.index()));
        std::visit([&](const auto& held) { encode(out, held); }, value);
    } else if constexpr (detail::is_tuple<T>) {
        std::apply([&](const auto&... items) { (encode(out, items), ...); }, value);
    } else if constexpr (!std::is_same_v<T, std::monostate>) {
        std::apply([&](const auto&... fields) { (encode(out, fields), ...); }, tie_fields(value));
    }
}

/// One value as a message of its own.
template <encodable T>
[[nodiscard]] byte_buffer encode(const T& value, const limits& bounds = {}) {
    writer out(bounds);
    encode(out, value);
    return std::move(out).take();
}

} // namespace skein::wire
