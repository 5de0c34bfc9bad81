// SPDX-License-Identifier: Apache-2.0
#pragma once
// remote<&f>(args...): calls a function on some worker and gives a ref to its result.
//
//     row load(int shard);                               // plain function or coroutine
//     auto r = skein::remote<&load>(7);                  // submitted now
//     auto s = skein::remote<&score>.with({.cpus = 2})(r, 2.f);
//     float x = co_await s;
//
// Arguments are converted to the parameter types here and encoded once. A ref<T> stands for its T:
// the call is sent when it is there. A task may run again after its worker died (.retries); what it
// does twice is the program's concern. Methods of actors: remote<&T::m>(handle, args...).

#include <skein/rt/detail/remote.hpp>
#include <skein/rt/options.hpp>
#include <skein/rt/ref.hpp>
#include <skein/rt/runtime.hpp>

#include <concepts>
#include <coroutine>
#include <type_traits>
#include <utility>

namespace skein {

template <class T>
class actor_handle;
class session;
template <class T>
class shared_actor;
template <auto F>
class session_function;

namespace rt::detail {

template <class T>
void is_a_handle(const actor_handle<T>&);
template <class T>
void is_a_handle(const shared_actor<T>&);
/// The first of some arguments is a handle.
template <class... A>
inline constexpr bool is_through_handle = false;
template <class First, class... A>
inline constexpr bool is_through_handle<First, A...> =
    requires(const std::remove_cvref_t<First>& a) { is_a_handle(a); };

} // namespace rt::detail

/// remote<&f> with its options; call it like f, as often as you like.
template <auto F, class Options = rt::detail::default_options<call_options>>
class remote_function {
    static_assert((std::is_pointer_v<decltype(F)> &&
                   std::is_function_v<std::remove_pointer_t<decltype(F)>>) ||
                      std::is_member_function_pointer_v<decltype(F)>,
                  "skein: remote<> takes the address of a function: remote<&f>, or remote<&T::m> "
                  "of an actor's method. A lambda is an object: name a function, or write "
                  "constexpr auto f = +[](int v) { ... }; outside of functions and remote<f>");
    using kept = rt::detail::owned_options<call_options>;

public:
    constexpr remote_function() noexcept = default;
    constexpr remote_function(rt::runtime* by, Options how) noexcept
        : how_(std::move(how)), by_(by) {}

    /// The same function with options for its calls. Their texts are copied: it may be kept.
    [[nodiscard]] auto with(const call_options& how) const {
        return remote_function<F, kept>(by_, kept(how));
    }
    /// The same function, submitted to this runtime instead of the thread's current one.
    [[nodiscard]] constexpr remote_function on(rt::runtime& by) const noexcept {
        remote_function copy = *this;
        copy.by_ = &by;
        return copy;
    }
    /// The same function for threads: submitted through a session, it gives a pending
    /// (program/session.hpp).
    template <std::same_as<session> Session>
    [[nodiscard]] auto on(Session& by) const {
        return session_function<F>(by, kept(*how_));
    }

    /// Submits the call and returns at once.
    ///   args    the function's arguments, or refs to them; a method takes its handle first
    ///   errors  none here: they come when the ref is awaited
    template <class... A>
        requires(!rt::detail::signature<decltype(F)>::is_member)
    [[nodiscard]] auto operator()(A&&... args) const {
        return rt::detail::call_function<F>(by_ != nullptr ? *by_ : rt::runtime::current(), *how_,
                                            std::forward<A>(args)...);
    }
    /// A method: its ref may be dropped, as that of actor_handle::call().
    template <class T, class... A>
        requires(rt::detail::signature<decltype(F)>::is_member)
    auto operator()(const actor_handle<T>& actor, A&&... args) const {
        return rt::detail::call_method<F, T>(*how_, actor.queue(), std::forward<A>(args)...);
    }
    /// The same through a handle that threads share; gives a pending.
    template <class T, class... A>
        requires(rt::detail::signature<decltype(F)>::is_member)
    auto operator()(const shared_actor<T>& actor, A&&... args) const {
        return actor.template call_with<F>(*how_, std::forward<A>(args)...);
    }

    /// Says what to write instead.
    template <class... A>
        requires(rt::detail::signature<decltype(F)>::is_member &&
                 !rt::detail::is_through_handle<A...>)
    [[noreturn]] void operator()(A&&...) const {
        static_assert(sizeof...(A) > 1'000'000,
                      "skein: a method is called through its actor: handle.call<&T::m>(args...), "
                      "or remote<&T::m>.with({...})(handle, args...); the handle is what co_await "
                      "skein::actor<T>(...) gives");
    }
    /// Says what to write instead.
    template <class Never = void>
    [[noreturn]] std::suspend_never operator co_await() const {
        static_assert(!std::is_void_v<Never>,
                      "skein: this is a function with options, not a call: auto ref = "
                      "skein::remote<&f>.with({...})(args...); then co_await ref");
    }

private:
    Options how_;
    rt::runtime* by_ = nullptr;
};

/// remote<&f>(args...), remote<&f>.with({...})(args...), remote<&T::m>(handle, args...).
template <auto F>
inline constexpr remote_function<F> remote{};

} // namespace skein
