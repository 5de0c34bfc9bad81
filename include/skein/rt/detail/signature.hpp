// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a function pointer says about a remote function: its arguments, its result, its class, and
// whether they can travel. Every rule a user can break has its one readable line here.

#include <skein/core/fields.hpp>
#include <skein/core/task.hpp>
#include <skein/wire/decode.hpp>
#include <skein/wire/encode.hpp>
#include <skein/wire/schema.hpp>

#include <cstddef>
#include <span>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace skein {

template <class T>
class ref;
template <class T>
class generator;
template <class T>
class view;

namespace rt::detail {

template <class R>
struct unwrap_task {
    using type = R;
    static constexpr bool is_coroutine = false, is_generator = false;
};
template <class T>
struct unwrap_task<task<T>> {
    using type = T;
    static constexpr bool is_coroutine = true, is_generator = false;
};
template <class T>
struct unwrap_task<generator<T>> {
    using type = T; ///< of its items
    static constexpr bool is_coroutine = true, is_generator = true;
};

template <class>
struct unwrap_ref {
    static constexpr bool is_ref = false;
};
template <class T>
struct unwrap_ref<ref<T>> {
    using type = T;
    static constexpr bool is_ref = true;
};

template <class R, class C, class... P>
struct signature_of {
    using result = std::remove_cvref_t<typename unwrap_task<R>::type>;
    using class_type = C;
    using parameters = std::tuple<P...>;                     ///< as declared
    using arguments = std::tuple<std::remove_cvref_t<P>...>; ///< as they travel
    static constexpr bool is_coroutine = unwrap_task<R>::is_coroutine;
    static constexpr bool is_generator = unwrap_task<R>::is_generator;
    static constexpr bool is_member = !std::is_void_v<C>;
    static constexpr std::size_t arity = sizeof...(P);
};

template <class F>
struct signature;
template <class R, class... P>
struct signature<R (*)(P...)> : signature_of<R, void, P...> {};
template <class R, class... P>
struct signature<R (*)(P...) noexcept> : signature_of<R, void, P...> {};
template <class R, class C, class... P>
struct signature<R (C::*)(P...)> : signature_of<R, C, P...> {};
template <class R, class C, class... P>
struct signature<R (C::*)(P...) const> : signature_of<R, C, P...> {};
template <class R, class C, class... P>
struct signature<R (C::*)(P...) noexcept> : signature_of<R, C, P...> {};
template <class R, class C, class... P>
struct signature<R (C::*)(P...) const noexcept> : signature_of<R, C, P...> {};

template <class T>
inline constexpr bool is_view = false;
template <class T, std::size_t N>
inline constexpr bool is_view<std::span<T, N>> = true;
template <>
inline constexpr bool is_view<std::string_view> = true;

/// A view, or something with one inside. `Above` are the aggregates that T is inside of.
template <class T, class... Above>
consteval bool holds_view() {
    if constexpr (is_view<T>)
        return true;
    else if constexpr (wire::detail::is_one_of<T, Above...> || wire::detail::custom<T>)
        return false;
    else if constexpr (wire::detail::is_array<T>)
        return holds_view<typename T::value_type, Above...>();
    else if constexpr (plain_aggregate<T>)
        return !wire::detail::all_fields<T>(
            []<class F>() { return !holds_view<std::remove_cvref_t<F>, T, Above...>(); });
    else if constexpr (requires(const T* t) {
                           []<template <class...> class Template, class... Items>(
                               const Template<Items...>*) {}(t);
                       })
        return []<template <class...> class Template, class... Items>(const Template<Items...>*) {
            return (false || ... || holds_view<std::remove_cvref_t<Items>, T, Above...>());
        }(static_cast<const T*>(nullptr));
    else
        return false;
}
template <class Tuple>
inline constexpr bool any_holds_view = false;
template <class... T>
inline constexpr bool any_holds_view<std::tuple<T...>> = (false || ... || holds_view<T>());

/// Checks one parameter type; gives true so that it can be folded.
template <class P>
consteval bool check_parameter() {
    using value = std::remove_cvref_t<P>;
    constexpr bool bare_pointer = std::is_pointer_v<value>;
    constexpr bool changes_callers =
        std::is_lvalue_reference_v<P> && !std::is_const_v<std::remove_reference_t<P>>;
    static_assert(!bare_pointer,
                  "skein: a remote function cannot take a pointer: the object it points "
                  "to is in another process; take the value");
    static_assert(!changes_callers,
                  "skein: a remote function cannot take a non-const reference: the "
                  "caller's object is in another process; take it by value and "
                  "return the result");
    if constexpr (!bare_pointer && !changes_callers) {
        constexpr bool can_be_sent = wire::encodable<value>;
        static_assert(can_be_sent,
                      "skein: an argument type cannot be sent: make it a plain aggregate of "
                      "types that can (no base class; std::array, not a C array), or specialise "
                      "skein::wire::codec for it");
        return can_be_sent;
    } else {
        return false;
    }
}

template <class R>
consteval bool check_result() {
    static_assert(!std::is_pointer_v<R>,
                  "skein: a remote function cannot return a pointer: the object "
                  "it points to is in another process; return the value");
    if constexpr (std::is_void_v<R>) {
        return true;
    } else if constexpr (!std::is_pointer_v<R>) {
        constexpr bool can_be_sent = wire::encodable<R>;
        static_assert(can_be_sent,
                      "skein: the result type cannot be sent: make it a plain aggregate of "
                      "types that can (no base class; std::array, not a C array), or specialise "
                      "skein::wire::codec for it");
        if constexpr (can_be_sent) {
            constexpr bool is_owned = !holds_view<R>();
            static_assert(is_owned,
                          "skein: a remote function cannot return a span or string_view, nor "
                          "something that holds one: what it points to is in another process; "
                          "return a vector or string");
            return is_owned;
        } else {
            return false;
        }
    } else {
        return false;
    }
}

template <class Parameters>
struct parameter_check;
template <class... P>
struct parameter_check<std::tuple<P...>> {
    static constexpr bool ok = (true && ... && check_parameter<P>());
};

/// What has the same bytes in a message: a ref where a view is wanted, and vectors of them.
template <class A, class P>
inline constexpr bool is_twin = false;
template <class T>
inline constexpr bool is_twin<ref<T>, view<T>> = true;
template <class A, class P>
inline constexpr bool is_twin<std::vector<A>, std::vector<P>> = is_twin<A, P>;

/// A parameter that takes the ref itself, or a view of its value.
template <class P>
inline constexpr bool takes_ref = unwrap_ref<P>::is_ref;
template <class T>
inline constexpr bool takes_ref<view<T>> = true;

/// May an argument of type A be given for a parameter of type P?
template <class A, class P>
consteval bool fits() {
    using given = std::remove_cvref_t<A>;
    using wanted = std::remove_cvref_t<P>;
    if constexpr (is_twin<given, wanted> || (takes_ref<wanted> && std::is_same_v<given, wanted>)) {
        return true;
    } else if constexpr (unwrap_ref<given>::is_ref) {
        return std::is_convertible_v<const typename unwrap_ref<given>::type&, wanted> ||
               std::is_same_v<typename unwrap_ref<given>::type, wanted>;
    } else {
        return std::is_convertible_v<A&&, wanted>;
    }
}

template <class Parameters, class... A>
struct argument_check;
template <class... P, class... A>
struct argument_check<std::tuple<P...>, A...> {
    static consteval bool check() {
        static_assert(sizeof...(P) == sizeof...(A),
                      "skein: wrong number of arguments for this remote function");
        if constexpr (sizeof...(P) == sizeof...(A)) {
            constexpr bool all_fit = (true && ... && fits<A, P>());
            static_assert(all_fit,
                          "skein: an argument must be of the parameter's type, convertible to "
                          "it, or a ref to such a value");
            return all_fit;
        }
        return false;
    }
    static constexpr bool ok = check();
};

} // namespace rt::detail
} // namespace skein
