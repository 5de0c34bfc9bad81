// SPDX-License-Identifier: Apache-2.0
#pragma once
// Groups of an actor's methods, each with a bound of its own on how many are under way at a time.
//
//     struct store {
//         task<row> read(key k);
//         task<std::vector<key>> list();
//         task<void> compact();
//         using concurrency_groups =
//             skein::method_groups<skein::method_group<"io", 8, &store::read, &store::list>,
//                                  skein::method_group<"upkeep", 1, &store::compact>>;
//     };
//
// The type says it, publicly and behind its methods; calls are made as ever. The calls of a group
// start in the order in which they came, as others of it end; a full group does not hold back those
// of others. Methods that are in none are under .max_concurrency. A type has the groups of its base
// class unless it has its own.
//
// A plain method of a group waits for its turn, too, and then holds its worker until it returns:
// nothing else of the actor runs meanwhile, whatever the bounds. Only coroutine methods are ever
// under way together.
//
// Unless it blocks, and says so: plain methods of a blocking_group run on threads of the actor's
// own.
//
//     using disk = skein::blocking_group<"disk", 4, &store::load, &store::flush>;
//     using concurrency_groups = skein::method_groups<disk>;
//
// For callers they are like coroutine methods. Up to 4 of them run at the same time, beside each
// other and beside the actor's other methods: what they share is theirs to guard, with one thread
// only against the other methods. Such a thread is not the worker's loop: remote calls are made by
// coroutine methods. What runs is not interrupted; a call that is cancelled before it got a thread
// does not run. save() of a restorable actor runs on the loop, beside what is on the threads at
// that moment, which is nothing of the group where it has one thread.

#include <skein/rt/detail/signature.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

namespace skein {

/// The name of a method_group; made from a literal.
template <std::size_t Size>
struct group_name {
    consteval group_name(const char (&literal)[Size]) noexcept { // NOLINT: a literal is a name
        std::copy_n(literal, Size, text);
    }
    [[nodiscard]] constexpr std::string_view view() const noexcept { return {text, Size - 1}; }
    char text[Size]{}; ///< with its zero
};

/// Methods of which no more than Bound are under way at a time. The name is for errors and readers.
template <group_name Name, int Bound, auto... Methods>
struct method_group;

/// Plain methods that run on Threads threads of the actor's own, so many at a time.
template <group_name Name, int Threads, auto... Methods>
struct blocking_group;

/// The groups of one actor type: `using concurrency_groups = method_groups<...>;` in it.
template <class... Groups>
struct method_groups;

namespace rt::detail {

template <auto M>
struct method_key {};
/// How often the first is among the others.
template <class Key, class... Keys>
inline constexpr std::size_t times_among =
    (std::size_t{0} + ... + (std::is_same_v<Key, Keys> ? 1 : 0));

template <class... Key>
struct method_keys {
    template <class... Other>
    method_keys<Key..., Other...> operator+(method_keys<Other...>) const;
    static constexpr bool differ = (true && ... && (times_among<Key, Key...> == 1));
};

/// Is M a method of T, or of a base of it?
template <class T, class M>
consteval bool is_method_of() {
    if constexpr (std::is_member_function_pointer_v<M>)
        return std::is_base_of_v<typename signature<M>::class_type, T>;
    else
        return true; // its group has said so
}

template <class>
inline constexpr bool is_group = false;
template <group_name Name, int Bound, auto... Methods>
inline constexpr bool is_group<method_group<Name, Bound, Methods...>> = true;
template <group_name Name, int Threads, auto... Methods>
inline constexpr bool is_group<blocking_group<Name, Threads, Methods...>> = true;
template <class>
inline constexpr bool are_groups = false;
template <class... Groups>
inline constexpr bool are_groups<method_groups<Groups...>> = true;

/// Those of an actor type, or of a function's void.
template <class T>
struct groups_of {
    using type = method_groups<>;
};
template <class T>
    requires requires { typename T::concurrency_groups; }
struct groups_of<T> {
    using type = typename T::concurrency_groups;
    static_assert(are_groups<type>,
                  "skein: concurrency_groups of an actor type must be a skein::method_groups<...>");
    static_assert(type::template are_of<T>(),
                  "skein: a method_group names a method that is not one of the actor's own type");
};

/// What a call of method F of T is under. 0: no group; else its number, from 1.
template <auto F, class T>
consteval std::uint16_t group_number() {
    return groups_of<T>::type::template number_of<method_key<F>>();
}

/// Whether method F of T runs on a thread of the actor's own.
template <auto F, class T>
consteval bool is_blocking() {
    return groups_of<T>::type::template is_blocking<method_key<F>>();
}

template <class M>
consteval bool is_plain_method() {
    if constexpr (std::is_member_function_pointer_v<M>)
        return !signature<M>::is_coroutine;
    else
        return true; // its group has said so
}

} // namespace rt::detail

template <group_name Name, int Bound, auto... Methods>
struct method_group {
    static constexpr bool is_blocking = false;
    static constexpr std::string_view name = Name.view();
    static constexpr std::uint32_t bound = static_cast<std::uint32_t>(Bound);

    using methods = rt::detail::method_keys<rt::detail::method_key<Methods>...>;
    template <class Key>
    static constexpr bool has =
        rt::detail::times_among<Key, rt::detail::method_key<Methods>...> != 0;
    template <class T>
    static consteval bool is_of() {
        return (true && ... && rt::detail::is_method_of<T, decltype(Methods)>());
    }

    // Behind the members, so that what uses them adds no errors.
    static_assert(!Name.view().empty(), "skein: a method_group needs a name");
    static_assert(Bound > 0, "skein: the bound of a method_group must be at least 1");
    static_assert(sizeof...(Methods) > 0, "skein: a method_group without methods bounds nothing");
    static_assert((true && ... && std::is_member_function_pointer_v<decltype(Methods)>),
                  "skein: a method_group takes methods: &store::read");
};

template <group_name Name, int Threads, auto... Methods>
struct blocking_group : method_group<Name, Threads, Methods...> {
    static constexpr bool is_blocking = true;

    static_assert(Threads <= 256, "skein: a blocking_group has up to 256 threads");
    static_assert(
        (true && ... && rt::detail::is_plain_method<decltype(Methods)>()),
        "skein: a blocking_group takes plain methods; a coroutine method runs on the worker's loop "
        "and awaits skein::net::offload(...) for what blocks");
};

template <class... Groups>
struct method_groups {
    static_assert((true && ... && rt::detail::is_group<Groups>),
                  "skein: method_groups takes skein::method_group<...>");
    static_assert(sizeof...(Groups) < 65536, "skein: more groups than can be numbered");
    static constexpr std::size_t count = sizeof...(Groups);
    static constexpr std::array<std::uint32_t, count> bounds{Groups::bound...};
    static constexpr std::array<std::string_view, count> names{Groups::name...};

    static consteval bool names_differ() {
        for (std::size_t i = 0; i < count; ++i)
            for (std::size_t j = 0; j < i; ++j)
                if (names[i] == names[j]) return false;
        return true;
    }
    static_assert(names_differ(), "skein: two method_groups of an actor type have the same name");
    static_assert(decltype((rt::detail::method_keys<>() + ... +
                            typename Groups::methods()))::differ,
                  "skein: a method is in two method_groups, or twice in one");

    template <class T>
    static consteval bool are_of() {
        return (true && ... && Groups::template is_of<T>());
    }
    template <class Key>
    static consteval bool is_blocking() {
        return (false || ... || (Groups::is_blocking && Groups::template has<Key>));
    }
    /// 0: it is in none.
    template <class Key>
    static consteval std::uint16_t number_of() {
        std::uint16_t number = 0, next = 0;
        (void)(false || ... || (++next, Groups::template has<Key> && (number = next, true)));
        return number;
    }
};

} // namespace skein
