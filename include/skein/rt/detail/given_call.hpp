// SPDX-License-Identifier: Apache-2.0
#pragma once
// A call of this process to an actor of its own whose arguments travel as they are: copied or moved
// into it when it is made, and not encoded. It waits in the loop's queue beside the frames of this
// process to itself and runs in their order.
//
// Only values of which a copy is what decoding their bytes would give go this way: what skein
// itself encodes, and handles. So nobody can tell which way a call took, but by its speed.

#include <skein/core/frame_pool.hpp>
#include <skein/rt/detail/incoming_call.hpp>
#include <skein/rt/detail/signature.hpp>
#include <skein/wire/codec.hpp>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace skein {

template <class T>
class actor_handle;

namespace rt::detail {

/// The arguments of one call, and what else its head would say.
class given_call {
public:
    given_call() = default;
    given_call(const given_call&) = delete;
    given_call& operator=(const given_call&) = delete;
    virtual ~given_call() = default;
    /// Runs or starts it, once at most; it replies by itself.
    virtual void run(incoming_call& call) = 0;

    static void* operator new(std::size_t bytes) {
        return skein::detail::frame_pool::allocate(bytes);
    }
    static void operator delete(void* p, std::size_t bytes) noexcept {
        skein::detail::frame_pool::release(p, bytes);
    }

    const function_record* fn = nullptr;
    slot_id slot;
    actor_id target;
    trace_context who;
};

/// What makes one: any callable, borrowed for one call of a function. Or none.
class given_maker {
public:
    given_maker() noexcept = default;
    template <class F>
        requires(std::is_invocable_r_v<std::unique_ptr<given_call>, F&>)
    explicit given_maker(F& make) noexcept
        : object_(const_cast<void*>(static_cast<const void*>(std::addressof(make)))),
          call_([](void* o) -> std::unique_ptr<given_call> { return (*static_cast<F*>(o))(); }) {}
    explicit operator bool() const noexcept { return call_ != nullptr; }
    [[nodiscard]] std::unique_ptr<given_call> operator()() const { return call_(object_); }

private:
    void* object_ = nullptr;
    std::unique_ptr<given_call> (*call_)(void*) = nullptr;
};

template <class T>
inline constexpr bool is_handle = false;
template <class T>
inline constexpr bool is_handle<actor_handle<T>> = true;

/// What a type is made of.
enum class makeup : std::uint8_t {
    values,  ///< a copy is what decoding gives, and shares nothing with the original
    handles, ///< the same, and there are handles in it
    other,   ///< its own codec may change it, or it is a view
};

/// No allocator, comparison or hash with a state of its own, which decoding would not give.
template <class T>
consteval bool has_no_state() {
    if constexpr (requires { typename T::allocator_type; })
        if (!std::allocator_traits<typename T::allocator_type>::is_always_equal::value)
            return false;
    if constexpr (requires { typename T::key_compare; })
        if (!std::is_empty_v<typename T::key_compare>) return false;
    if constexpr (requires { typename T::hasher; })
        if (!std::is_empty_v<typename T::hasher> || !std::is_empty_v<typename T::key_equal>)
            return false;
    return true;
}

/// `Above` are the aggregates that T is inside of.
template <class T, class... Above>
consteval makeup makeup_of() {
    namespace w = wire::detail;
    if constexpr (w::is_one_of<T, Above...>) {
        return makeup::values;
    } else if constexpr (w::custom<T>) {
        return is_handle<T> ? makeup::handles : makeup::other;
    } else if constexpr (is_view<T> || !has_no_state<T>()) {
        return makeup::other;
    } else if constexpr (std::is_void_v<T> || w::is_scalar<T> || w::is_text<T> || w::is_id<T> ||
                         w::is_duration<T> || std::is_same_v<T, std::monostate> ||
                         std::is_same_v<T, skein::error>) {
        return makeup::values;
    } else if constexpr (w::is_map<T>) {
        return std::max(makeup_of<typename T::key_type, Above...>(),
                        makeup_of<typename T::mapped_type, Above...>());
    } else if constexpr (w::is_a<T, std::vector> || w::is_array<T> || w::is_set<T> ||
                         w::is_a<T, std::optional> || w::is_a<T, result>) {
        return makeup_of<typename T::value_type, Above...>();
    } else if constexpr (w::is_tuple<T> || w::is_a<T, std::variant>) {
        return []<template <class...> class Template, class... Items>(const Template<Items...>*) {
            return std::max({makeup::values, makeup_of<std::remove_cvref_t<Items>, Above...>()...});
        }(static_cast<const T*>(nullptr));
    } else if constexpr (plain_aggregate<T>) {
        return []<std::size_t... I>(std::index_sequence<I...>) {
            return std::max({makeup::values,
                             makeup_of<std::remove_cvref_t<field_type<T, I>>, T, Above...>()...});
        }(std::make_index_sequence<field_count<T>>{});
    } else {
        return makeup::other;
    }
}

/// A value of this type need not be encoded for an actor of the same process.
template <class T>
consteval bool travels_as_it_is() {
    if constexpr (std::is_void_v<T>)
        return true;
    else
        return makeup_of<T>() != makeup::other && std::is_copy_constructible_v<T>;
}

/// What a call holds for a parameter of type P: a view gets memory of its own.
template <class P>
struct held_as {
    using type = P;
};
template <>
struct held_as<std::string_view> {
    using type = std::string;
};
template <class T>
struct held_as<std::span<T>> {
    using type = std::vector<std::remove_const_t<T>>;
};

/// Whether a call with these arguments can be given.
template <class Arguments>
inline constexpr bool can_be_given = false;
template <class... P>
inline constexpr bool can_be_given<std::tuple<P...>> =
    (true && ... &&
     (std::is_same_v<P, typename held_as<P>::type> ? travels_as_it_is<P>() : is_view<P>));

/// Gives what `held_as<P>` holds of an argument of type A: a copy, or what was moved.
template <class P, class A>
typename held_as<P>::type own_argument(A&& a) {
    if constexpr (unwrap_ref<std::remove_cvref_t<A>>::is_ref) {
        auto& state = *a.state();
        if (!state.value && state.object()) return own_argument<P>(state.copy_of_object());
        return own_argument<P>(state.get());
    } else if constexpr (std::is_same_v<P, std::string_view>) {
        return std::string(std::string_view(a));
    } else if constexpr (is_view<P>) {
        const P view(a);
        return typename held_as<P>::type(view.begin(), view.end());
    } else {
        return P(std::forward<A>(a));
    }
}

/// A parameter out of what was held for it.
template <class P, class Held>
P parameter_of(Held& held) {
    if constexpr (is_view<P>)
        return P(held);
    else
        return std::move(held);
}

} // namespace rt::detail
} // namespace skein
