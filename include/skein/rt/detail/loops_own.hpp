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
class placement_group;

namespace rt::detail {

/// What belongs to a loop, or has such a thing inside, and must not be seen by other threads.
template <class T>
inline constexpr bool is_of_a_loop = std::is_same_v<T, placement_group>;
template <class T>
inline constexpr bool is_of_a_loop<ref<T>> = true;
template <class T>
inline constexpr bool is_of_a_loop<actor_handle<T>> = true;

template <class T, class... Above>
consteval bool holds_loops_own() {
    if constexpr (std::is_void_v<T>)
        return false;
    else if constexpr (is_of_a_loop<T>)
        return true;
    else if constexpr (wire::detail::is_one_of<T, Above...>)
        return false;
    else if constexpr (wire::detail::is_array<T>)
        return holds_loops_own<typename T::value_type, T, Above...>();
    else if constexpr (requires(const T* t) {
                           []<template <class...> class Template, class... Items>(
                               const Template<Items...>*) {}(t);
                       })
        return []<template <class...> class Template, class... Items>(const Template<Items...>*) {
            return (false || ... || holds_loops_own<std::remove_cvref_t<Items>, T, Above...>());
        }(static_cast<const T*>(nullptr));
    else if constexpr (wire::encodable<T> && !wire::detail::custom<T> && plain_aggregate<T>)
        return !wire::detail::all_fields<T>(
            []<class F>() { return !holds_loops_own<std::remove_cvref_t<F>, T, Above...>(); });
    else
        return false;
}

} // namespace rt::detail
} // namespace skein
