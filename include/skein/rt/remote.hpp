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
#include <utility>

namespace skein {

template <class T>
class actor_handle;
class session;
template <class T>
class shared_actor;
template <auto F>
class session_function;

/// remote<&f> with its options; call it like f.
template <auto F>
class remote_function {
    using traits = rt::detail::signature<decltype(F)>;

public:
    constexpr remote_function() noexcept = default;

    /// The same function with options for the call that follows.
    [[nodiscard]] constexpr remote_function with(call_options how) const noexcept {
        remote_function copy = *this;
        copy.how_ = how;
        return copy;
    }
    /// The same function, submitted to this runtime instead of the thread's current one.
    [[nodiscard]] constexpr remote_function on(rt::runtime& by) const noexcept {
        remote_function copy = *this;
        copy.by_ = &by;
        return copy;
    }
    /// The same function for threads: submitted through a session, it gives a pending (rt/session.hpp).
    template <std::same_as<session> Session>
    [[nodiscard]] auto on(Session& by) const {
        return session_function<F>(by, how_);
    }

    /// Submits the call and returns at once.
    ///   args    the function's arguments, or refs to them; a method takes its handle first
    ///   errors  none here: they come when the ref is awaited
    template <class... A>
        requires(!rt::detail::signature<decltype(F)>::is_member)
    [[nodiscard]] auto operator()(A&&... args) const {
        return rt::detail::call_function<F>(by_ != nullptr ? *by_ : rt::runtime::current(), how_,
                                            std::forward<A>(args)...);
    }
    /// A method: its ref may be dropped, as that of actor_handle::call().
    template <class T, class... A>
        requires(rt::detail::signature<decltype(F)>::is_member)
    auto operator()(const actor_handle<T>& actor, A&&... args) const {
        return rt::detail::call_method<F, T>(how_, actor.lane(), std::forward<A>(args)...);
    }
    /// The same through a handle that threads share; gives a pending.
    template <class T, class... A>
        requires(rt::detail::signature<decltype(F)>::is_member)
    auto operator()(const shared_actor<T>& actor, A&&... args) const {
        return actor.template call_with<F>(how_, std::forward<A>(args)...);
    }

private:
    call_options how_;
    rt::runtime* by_ = nullptr;
};

/// remote<&f>(args...), remote<&f>.with({...})(args...), remote<&T::m>(handle, args...).
template <auto F>
inline constexpr remote_function<F> remote{};

} // namespace skein
