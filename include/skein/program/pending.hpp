// SPDX-License-Identifier: Apache-2.0
#pragma once
// pending<T>: the outcome of a call that a thread has made through a session, now or later.
//
//     auto p = cluster.submit<&square>(7);      // on any thread
//     if (p.wait_for(10ms)) use(p.get());       // blocks this thread, not the loop
//     const auto v = big.view();                // the value where it lies: *v is a std::span, say
//
// Copies stand for the same call. It is an argument of other calls, as a ref is. The call runs
// whether or not anybody looks: dropping a pending does not cancel it. It may outlive its session:
// then it has its outcome, or errc::closed.

#include <skein/core/time.hpp>
#include <skein/objects/object.hpp>
#include <skein/program/detail/session_door.hpp>
#include <skein/rt/remote_error.hpp>
#include <skein/rt/view.hpp>

#include <atomic>
#include <condition_variable>
#include <coroutine>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <type_traits>
#include <utility>
#include <variant>

namespace skein {

template <class T>
class actor_handle;
template <class T>
class shared_actor;

namespace program::detail {

/// What threads get, as the loop knows it.
template <class V>
struct result_inside {
    using type = V;
};
template <class T>
struct result_inside<shared_actor<T>> {
    using type = actor_handle<T>;
};

/// What one call and the threads that wait for it share. An outcome is written once, before `done`;
/// then all read.
class pending_base : public std::enable_shared_from_this<pending_base> {
public:
    pending_base(std::shared_ptr<session_door> through, const rt::function_record* of) noexcept
        : door(std::move(through)), fn(of) {}
    pending_base(const pending_base&) = delete;
    pending_base& operator=(const pending_base&) = delete;

    [[nodiscard]] bool is_done() const noexcept { return done_.load(std::memory_order_acquire); }
    /// Blocks until it is done.
    void wait() const;
    /// The same for so long at most; false: it is not done.
    [[nodiscard]] bool wait_for(duration limit) const;
    /// The same; throws timeout.
    void wait_within(duration limit) const;
    [[nodiscard]] const rt::failure* failed() const noexcept { return why_ ? &*why_ : nullptr; }
    void cancel(bool by_force);

    /// Ends it; so does succeed(). One of them, once.
    void fail(rt::failure why) noexcept;

    const std::shared_ptr<session_door> door;
    const rt::function_record* const fn;
    rt::detail::call_base* call = nullptr; ///< the loop's: the call, while it has no outcome
    /// Copies of pending, also those that calls hold as arguments: who may look at the value.
    mutable std::atomic<std::uint32_t> readers{0};

protected:
    void finish() noexcept;

private:
    mutable std::mutex mutex_; // guards waiting_, and done_ while it is set
    mutable std::condition_variable ended_;
    mutable std::uint32_t waiting_ = 0;
    std::atomic<bool> done_{false};
    std::optional<rt::failure> why_;
};

template <class V>
class pending_state final : public pending_base {
public:
    using stored = std::conditional_t<std::is_void_v<V>, std::monostate, V>;
    using pending_base::pending_base;

    void succeed(stored v) {
        value.emplace(std::move(v));
        finish();
    }
    /// With a value that is read where it is.
    void succeed_with(objects::reading_ptr held) {
        object = std::move(held);
        finish();
    }
    std::optional<stored> value;
    objects::reading_ptr object; ///< the value is this one, and not in `value`
};

/// The one who owes an outcome. Without one it ends with `closed`.
template <class V>
class pending_writer {
public:
    explicit pending_writer(std::shared_ptr<pending_state<V>> to) noexcept : to_(std::move(to)) {}
    pending_writer(pending_writer&&) noexcept = default;
    pending_writer& operator=(pending_writer&&) = delete;
    ~pending_writer() {
        if (to_ && !to_->is_done()) to_->fail({session_closed(to_->fn, "did not run"), nullptr});
    }
    pending_state<V>* operator->() const noexcept { return to_.get(); }

private:
    std::shared_ptr<pending_state<V>> to_;
};

} // namespace program::detail

/// The outcome of one call, for threads. All members are thread-safe, as those of a shared_ptr are:
/// two threads have a copy each.
template <class T>
class pending {
    using state = program::detail::pending_state<T>;

public:
    using value_type = T;
    /// As an argument: what it is on the loop.
    using shared_with_threads = ref<typename program::detail::result_inside<T>::type>;

    pending() noexcept = default;
    explicit pending(std::shared_ptr<state> of) noexcept : state_(std::move(of)) { enter(); }
    pending(const pending& other) noexcept : pending(other.state_) {}
    pending(pending&& other) noexcept = default;
    pending& operator=(pending other) noexcept {
        std::swap(state_, other.state_);
        return *this;
    }
    ~pending() {
        if (state_) state_->readers.fetch_sub(1, std::memory_order_release);
    }

    /// False if default-constructed or moved from.
    explicit operator bool() const noexcept { return static_cast<bool>(state_); }
    /// True when get() would not block.
    [[nodiscard]] bool ready() const noexcept { return here().is_done(); }
    /// Blocks this thread until there is an outcome.
    ///   errors  invalid_argument: on the session's own thread, which would wait for itself
    void wait() const { here().wait(); }
    /// The same, for so long at most. False: there is none yet.
    [[nodiscard]] bool wait_for(time_span limit) const { return here().wait_for(limit); }

    /// Blocks this thread until there is an outcome; gives a copy of the value.
    ///   errors  what co_await of a ref throws: remote_error, worker_lost, timeout (.deadline),
    ///           cancelled; closed: the session ended first; invalid_argument: on the session's own
    ///           thread
    T get() const& {
        here().wait();
        return copy();
    }
    /// The same, but takes the value out when no other copy is left. This one is empty then.
    T get() && {
        here().wait();
        return take();
    }
    /// The same, for so long at most. The call itself goes on; `.deadline` bounds the call.
    ///   errors  also timeout
    T get_for(time_span limit) const& {
        here().wait_within(limit);
        return copy();
    }
    T get_for(time_span limit) && {
        here().wait_within(limit);
        return take();
    }

    /// Blocks this thread until there is an outcome; gives the value where it lies, to be read by any
    /// thread: see skein::view. Nothing is copied.
    ///   errors  those of get()
    [[nodiscard]] skein::view<T> view() const {
        auto& all = here();
        all.wait();
        if (const auto* why = all.failed()) why->raise();
        if (all.object) return skein::view<T>::of_object(all.object);
        const auto keep = std::make_shared<const pending>(*this); // nobody takes it out meanwhile
        return skein::view<T>::of_value(std::shared_ptr<const T>(keep, &*all.value));
    }

    /// Asks the call to end, as ref::cancel() does. Nothing happens if it has ended.
    void cancel() const { here().cancel(false); }
    /// The same as ref::cancel_by_force().
    ///   errors  not_supported: a call of an actor, see kill()
    void cancel_by_force() const { here().cancel(true); }

    /// Says what to write instead.
    template <class Never = void>
    [[noreturn]] std::suspend_never operator co_await() const {
        static_assert(!std::is_void_v<Never>,
                      "skein: a pending is for threads: get() waits for it; a coroutine calls "
                      "skein::remote<&f>(...) itself, and awaits the ref");
    }

    /// What its copies share.
    [[nodiscard]] const std::shared_ptr<state>& shared() const noexcept { return state_; }

private:
    void enter() const noexcept {
        if (state_) state_->readers.fetch_add(1, std::memory_order_relaxed);
    }
    [[nodiscard]] state& here() const {
        SKEIN_CHECK(state_, "an empty skein::pending is asked for its outcome");
        return *state_;
    }
    T copy() const {
        static_assert(std::is_void_v<T> || std::is_copy_constructible_v<T>,
                      "skein: this result cannot be copied: std::move(pending).get() takes it out");
        if (const auto* why = state_->failed()) why->raise();
        if constexpr (rt::detail::storable<T>)
            if (state_->object) return rt::detail::copy_out<T>(*state_->object);
        if constexpr (!std::is_void_v<T>) return *state_->value;
    }
    T take() {
        const pending mine(std::move(*this));
        auto& all = *mine.state_;
        if (const auto* why = all.failed()) why->raise();
        if constexpr (rt::detail::storable<T>)
            if (all.object) return rt::detail::copy_out<T>(*all.object);
        if constexpr (!std::is_void_v<T>) {
            // Who had a copy has read what it wanted before it let go.
            const bool is_last = all.readers.load(std::memory_order_acquire) == 1;
            if constexpr (std::is_copy_constructible_v<T>) {
                if (!is_last) return *all.value;
            } else {
                SKEIN_CHECK(is_last, "a result that cannot be copied is taken from one of several "
                                     "copies of its pending");
            }
            return std::move(*all.value);
        }
    }

    std::shared_ptr<state> state_;
};

} // namespace skein

#if SKEIN_HEADER_ONLY
#include <skein/program/detail/pending.ipp>
#endif
