// SPDX-License-Identifier: Apache-2.0
#pragma once
// holds_loops_own: types whose values are counted by the loop they were made on, without locks.

#include <skein/core/fields.hpp>
#include <skein/wire/codec.hpp>

#include <type_traits>

namespace skein {

template <class T>
class ref;
template <class T>
class actor_handle;
template <class T>
class view;
class placement_group;

namespace rt::detail {

/// Of what belongs to a loop and must not be seen by other threads.
template <class T>
inline constexpr bool is_of_a_loop = std::is_same_v<T, placement_group>;
template <class T>
inline constexpr bool is_of_a_loop<ref<T>> = true;
template <class T>
inline constexpr bool is_of_a_loop<actor_handle<T>> = true;

/// Of what reads an object in place.
template <class T>
inline constexpr bool is_object_view = false;
template <class T>
inline constexpr bool is_object_view<view<T>> = true;

struct loops_own {
    template <class T>
    static constexpr bool has = is_of_a_loop<T>;
};
struct object_views {
    template <class T>
    static constexpr bool has = is_object_view<T>;
};

/// A T is such, or has such a thing inside.
template <class What, class T, class... Above>
consteval bool holds_any() {
    if constexpr (std::is_void_v<T>)
        return false;
    else if constexpr (What::template has<T>)
        return true;
    else if constexpr (wire::detail::is_one_of<T, Above...>)
        return false;
    else if constexpr (wire::detail::is_array<T>)
        return holds_any<What, typename T::value_type, T, Above...>();
    else if constexpr (requires(const T* t) {
                           []<template <class...> class Template, class... Items>(
                               const Template<Items...>*) {}(t);
                       })
        return []<template <class...> class Template, class... Items>(const Template<Items...>*) {
            return (false || ... || holds_any<What, std::remove_cvref_t<Items>, T, Above...>());
        }(static_cast<const T*>(nullptr));
    else if constexpr (wire::encodable<T> && !wire::detail::custom<T> && plain_aggregate<T>)
        return !wire::detail::all_fields<T>(
            []<class F>() { return !holds_any<What, std::remove_cvref_t<F>, T, Above...>(); });
    else
        return false;
}

template <class T>
consteval bool holds_loops_own() {
    return holds_any<loops_own, T>();
}

} // namespace rt::detail
} // namespace skein
