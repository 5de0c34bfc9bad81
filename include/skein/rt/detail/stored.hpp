// SPDX-License-Identifier: Apache-2.0
#pragma once
// How a value lies in an object, and what a view of it gives.
//
//     a vector of plain elements   its elements and nothing else, so that they are aligned to a page
//     a std::string                its characters
//     all else                     as it is encoded in a message

#include <skein/core/bytes.hpp>
#include <skein/core/result.hpp>
#include <skein/objects/object.hpp>
#include <skein/rt/detail/loops_own.hpp>
#include <skein/rt/detail/signature.hpp>
#include <skein/wire/decode.hpp>
#include <skein/wire/encode.hpp>

#include <concepts>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <fmt/format.h>

namespace skein::rt::detail {

template <class T>
inline constexpr bool is_flat_vector = false;
template <class E>
inline constexpr bool is_flat_vector<std::vector<E>> = wire::fixed_layout<E>;

/// Its bytes in an object are those of its elements.
template <class T>
inline constexpr bool is_flat = is_flat_vector<T> || std::is_same_v<T, std::string>;

template <class T>
consteval bool is_storable() {
    if constexpr (std::is_void_v<T>)
        return false;
    else
        return wire::encodable<T> && !holds_view<T>() && !holds_loops_own<T>() &&
               std::is_default_constructible_v<T>;
}
/// A value of this type can be an object: nothing in it belongs to a loop.
template <class T>
inline constexpr bool storable = is_storable<T>();

/// A value of which its codec gives one that lies over the bytes of an object, which it keeps.
template <class T>
concept read_in_place = requires(byte_span bytes, std::shared_ptr<const void> keep) {
    { wire::codec<T>::in_place(bytes, keep) } -> std::same_as<result<T>>;
};

/// What a view of a T gives.
template <class T>
struct read_as {
    using type = const T&;
};
template <class E>
    requires wire::fixed_layout<E>
struct read_as<std::vector<E>> {
    using type = std::span<const E>;
};
template <>
struct read_as<std::string> {
    using type = std::string_view;
};

/// The bytes of a flat value.
template <class T>
[[nodiscard]] byte_span flat_bytes(const T& value) noexcept {
    return {reinterpret_cast<const std::byte*>(value.data()),
            value.size() * sizeof(typename T::value_type)};
}

/// The elements of a flat value in the bytes of an object.
template <class T>
[[nodiscard]] typename read_as<T>::type flat_view(byte_span bytes) noexcept {
    using element = typename T::value_type;
    return {reinterpret_cast<const element*>(bytes.data()), bytes.size() / sizeof(element)};
}

/// A copy of the value in an object.
template <class T>
[[nodiscard]] result<void> read_stored(byte_span bytes, T& into) {
    if constexpr (is_flat<T>) {
        if (bytes.size() % sizeof(typename T::value_type) != 0)
            return error(errc::malformed,
                         fmt::format("an object of {} bytes holds no whole elements of {}",
                                     bytes.size(), sizeof(typename T::value_type)));
        const auto all = flat_view<T>(bytes);
        into.assign(all.begin(), all.end());
        return {};
    } else {
        return wire::decode(bytes, into);
    }
}

/// The value of an object that is being read, copied out of it. Any thread.
///   errors  malformed
template <class T>
[[nodiscard]] T copy_out(const objects::reading& from) {
    auto copy = wire::detail::fresh<T>();
    if (auto read = read_stored(from.bytes(), copy); !read) throw read.error();
    objects::count_copied_out(from.bytes().size());
    return copy;
}

// An object of a T in the place of a parameter of type P.

/// P sees the bytes of an object of a T.
template <class P, class T>
inline constexpr bool is_view_of = false;
template <class E>
inline constexpr bool is_view_of<std::span<const E>, std::vector<E>> = wire::fixed_layout<E>;
template <>
inline constexpr bool is_view_of<std::string_view, std::string> = true;

template <class P, class T>
consteval bool takes_object() {
    if constexpr (storable<T>)
        return std::is_same_v<P, T> || is_view_of<P, T>;
    else
        return false;
}

/// Whether a parameter may come as an object: what is always small does not.
template <class P>
consteval bool may_come_as_object() {
    if constexpr (is_view<P>)
        return true;
    else if constexpr (wire::detail::is_scalar<P> || wire::fixed_layout<P>)
        return false;
    else
        return storable<P>;
}

/// A parameter out of an object.
template <class P>
[[nodiscard]] result<void> read_argument(byte_span bytes, P& into) {
    if constexpr (std::is_same_v<P, std::string_view>) {
        into = flat_view<std::string>(bytes);
        return {};
    } else if constexpr (is_view<P>) {
        using element = std::remove_const_t<typename P::element_type>;
        if (bytes.size() % sizeof(element) != 0)
            return error(errc::malformed, "an object holds no whole elements");
        into = P(reinterpret_cast<const element*>(bytes.data()), bytes.size() / sizeof(element));
        return {};
    } else {
        return read_stored(bytes, into);
    }
}

} // namespace skein::rt::detail
