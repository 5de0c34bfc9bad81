// SPDX-License-Identifier: Apache-2.0
#pragma once
// Actors: an object that lives on one worker and is called through a handle.
//
//     struct counter { int n = 0; int add(int k) { return n += k; } };
//     auto c = co_await skein::actor<counter>(10);
//     auto r = c.call<&counter::add>(5);
//     int n = co_await r;                                    // 15
//
// Calls of one caller run in the order in which they were made, also when an argument is a ref that
// is still pending. Plain methods run one after the other; coroutine methods start in order and
// interleave only where they suspend. A call runs at most once. When the worker dies, the actor is
// gone and its calls fail with worker_lost, unless it was made with .restarts. The actor ends with
// the last handle to it, in whatever process of the program that is.
//
// Options: actor<T>.with({.restarts = 3, .name = "table"})(args...), see rt/actor_options.hpp.
// Bounds on how many calls are under way at a time, for groups of methods: rt/method_group.hpp.

#include <skein/rt/actor_options.hpp>
#include <skein/rt/detail/actor.hpp>
#include <skein/rt/remote.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace skein {

class session;
template <class T>
class session_actor_maker;

/// A counted handle to an actor of type T; one pointer wide, copyable, and an argument of calls.
template <class T>
class actor_handle {
public:
    using actor_type = T;

    actor_handle() noexcept = default;
    explicit actor_handle(counted_ptr<rt::detail::actor_queue> queue) noexcept
        : queue_(std::move(queue)) {}

    /// False if default-constructed or moved from.
    explicit operator bool() const noexcept { return static_cast<bool>(queue_); }
    /// Which actor; the same in all processes of one run.
    [[nodiscard]] actor_id id() const noexcept { return queue_ ? queue_->id : actor_id{}; }

    /// Submits a call of a method; see remote<>. Calls through copies of one handle stay in order.
    /// The ref may be dropped: the call runs all the same, and a failure that nobody can see is
    /// logged. With options: remote<&T::m>.with({...})(handle, args...).
    template <auto M, class... A>
    auto call(A&&... args) const {
        static constexpr call_options none; // made once: it is large
        return rt::detail::call_method<M, T>(none, queue_, std::forward<A>(args)...);
    }
    /// Calls a method that gives a generator, and gives its items; needs rt/stream.hpp. With
    /// options: stream<&T::m>.with({...})(handle, args...).
    template <auto M, class... A>
    [[nodiscard]] auto stream(A&&... args) const {
        static constexpr call_options none;
        return rt::detail::begin_stream<M, T>(rt::detail::runtime_of(queue_), none, {}, queue_,
                                              std::forward<A>(args)...);
    }
    /// Says what to write instead.
    template <class Never = void>
    const T* operator->() const {
        static_assert(!std::is_void_v<Never>,
                      "skein: an actor lives in another process: handle.call<&T::m>(args...) calls "
                      "it there and gives a ref");
        return nullptr;
    }
    /// Calls through handles of this process that have no outcome yet.
    [[nodiscard]] std::size_t pending() const noexcept { return queue_ ? queue_->pending : 0; }
    /// True once this process knows that the actor is gone; a worker learns it from the calls that
    /// fail.
    [[nodiscard]] bool has_ended() const noexcept { return queue_ && queue_->lost; }
    /// For `.on`: the node where the actor is, also when it is made again on another one.
    operator location() const noexcept {
        return location::beside(id());
    } // NOLINT: reads as it is meant
    friend bool operator==(const actor_handle&, const actor_handle&) = default;

    [[nodiscard]] const counted_ptr<rt::detail::actor_queue>& queue() const noexcept {
        return queue_;
    }

private:
    counted_ptr<rt::detail::actor_queue> queue_;
};

/// Makes actors of type T: actor<T>(args...), actor<T>.with({...})(args...).
template <class T, class Options = rt::detail::default_options<actor_options>>
class actor_maker {
    using kept = rt::detail::owned_options<actor_options>;

public:
    constexpr actor_maker() noexcept = default;
    constexpr explicit actor_maker(Options how) noexcept : how_(std::move(how)) {}

    /// The same with options for its actors. Their texts are copied: it may be kept.
    [[nodiscard]] auto with(const actor_options& how) const {
        return actor_maker<T, kept>(kept(how));
    }
    /// Makes a T on the worker with the fewest actors, from these arguments (aggregates too).
    /// Submitted at once; suspends until the constructor has returned.
    /// A detached one is submitted when it is awaited, since its namespace has to be reached first.
    ///   errors  remote_error (the constructor threw), worker_lost, already_exists (the name),
    ///           mismatch (.get_if_exists: the one of that name is of another type); those of
    ///           get_actor with a namespace
    template <class... A>
    [[nodiscard]] task<actor_handle<T>> operator()(A&&... args) const {
        return rt::detail::make_actor<T>(*how_, std::forward<A>(args)...);
    }
    /// The same for threads: called like this one it blocks, and gives a handle that threads share
    /// (program/session.hpp).
    template <std::same_as<session> Session>
    [[nodiscard]] auto on(Session& by) const {
        return session_actor_maker<T>(by, kept(*how_));
    }

private:
    Options how_;
};

/// Makes a T on some worker: co_await actor<T>(args...).
template <class T>
inline constexpr actor_maker<T> actor{};

/// The actor of that name, in any process of the program. One that is being made counts: its calls
/// wait.
///   errors  not_found (the text lists some names that there are), mismatch (it is no T)
template <class T>
[[nodiscard]] task<actor_handle<T>> get_actor(std::string_view name) {
    return rt::detail::look_up<T>(name);
}
/// The same of a namespace of the cluster, whichever program made it; from drivers and workers.
///   errors  as above; those of reaching the namespace: mismatch (it is kept by another program or
///           build), worker_lost (its space server did not start, or was lost meanwhile),
///           not_supported (no cluster)
template <class T>
[[nodiscard]] task<actor_handle<T>> get_actor(std::string_view name, actor_search where) {
    if (where.space.empty()) return rt::detail::look_up<T>(name);
    return rt::detail::look_up_in<T>(std::string(where.space), std::string(name));
}

/// Ends an actor at once: calls that wait fail with not_found, coroutine methods that run are
/// cancelled, a plain one that runs ends as it would. It is not made again. Nothing happens if it
/// has ended.
template <class T>
void kill(const actor_handle<T>& handle) {
    rt::detail::runtime_of(handle.queue()).kill_actor(handle.id());
}

/// Suspends until a call through this handle leaves at once: until few enough of those that this
/// process has made wait for the actor to begin them. So whoever makes calls faster than they begin
/// does not fill its memory with them:
///
///     while (more()) {
///         co_await skein::room(sink);
///         (void)sink.call<&store::put>(next());
///     }
///
/// Returns also when the actor has ended, so that the next call says why.
///   errors  cancelled
template <class T>
[[nodiscard]] task<void> room(const actor_handle<T>& handle) {
    return rt::detail::runtime_of(handle.queue()).wait_credit(handle.queue());
}

/// In a method: the actor ends when this call has ended, and is not made again. Coroutine methods
/// that run go on to their end; calls behind it fail with not_found.
///   errors  invalid_argument: not inside a method
inline void leave_actor() { rt::runtime::current().leave_actor(); }

} // namespace skein

/// How a handle travels.
template <class T>
struct skein::wire::codec<skein::actor_handle<T>> {
    static constexpr const char* schema = "actor";
    static void encode(writer& to, const skein::actor_handle<T>& h) {
        skein::rt::detail::encode_handle(to, h.queue());
    }
    static skein::result<void> decode(reader& from, skein::actor_handle<T>& into) {
        skein::counted_ptr<skein::rt::detail::actor_queue> queue;
        auto read = skein::rt::detail::decode_handle(from, queue);
        if (read && queue) into = skein::rt::detail::handle_of<T>(std::move(queue));
        return read;
    }
};
