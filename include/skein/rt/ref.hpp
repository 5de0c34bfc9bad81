// SPDX-License-Identifier: Apache-2.0
#pragma once
// ref<T>: the value of a remote call, now or later.
//
// Copy it, pass it on as an argument of another call (it is resolved on the way), await it any
// number of times. The call runs whether or not anybody looks: dropping a ref does not cancel it.
// If the call fails after its last ref was dropped, the error is logged as a warning.
//
//     auto row = skein::remote<&load>(7);          // runs now
//     auto s = skein::remote<&score>(row, 2.f);    // runs as soon as row is there
//     float x = co_await s;

#include <skein/core/all.hpp>
#include <skein/core/any.hpp>
#include <skein/core/as_completed.hpp>
#include <skein/core/awaitable.hpp>
#include <skein/core/race.hpp>
#include <skein/core/timeout.hpp>
#include <skein/objects/object.hpp>
#include <skein/rt/detail/call.hpp>
#include <skein/rt/detail/call_rarities.hpp>
#include <skein/rt/detail/ref_codec.hpp>
#include <skein/rt/detail/stored.hpp>
#include <skein/wire/decode.hpp>
#include <skein/wire/encode.hpp>

#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <variant>

namespace skein {

template <class T>
class ref;

namespace rt::detail {

/// A call and its value.
template <class T>
class ref_state : public call_base {
public:
    using stored = std::conditional_t<std::is_void_v<T>, std::monostate, T>;
    std::optional<stored> value;

    // The runtime counts a call as a call_base, users count it as what it is: a failure that no
    // user can see any more is logged.
    void add_use() noexcept {
        ++watchers_;
        call_base::add_use();
    }
    void drop_use() noexcept {
        --watchers_;
        call_base::drop_use();
    }
    /// It is an object; null: it is not, or there is no value.
    [[nodiscard]] const objects::object_ptr& object() const noexcept {
        static const objects::object_ptr none;
        return rare ? rare->object : none;
    }
    /// The value, where it is no object.
    [[nodiscard]] const stored& get() const noexcept {
        if (value || !rare || !rare->shared) return *value;
        return *static_cast<const stored*>(rare->shared.get());
    }
    [[nodiscard]] stored copy_of_object() const
        requires(!std::is_void_v<T>)
    {
        return copy_out<stored>(*bytes_of_object());
    }
    [[nodiscard]] bool has_value() const noexcept override {
        return value || (rare && rare->shared);
    }
    /// The value for views, which threads may share: it is moved there, and stays.
    [[nodiscard]] std::shared_ptr<const T> share()
        requires(!std::is_void_v<T>)
    {
        auto& all = extra();
        if (!all.shared) {
            all.shared = std::make_shared<const T>(std::move(*value));
            value.reset();
        }
        return std::static_pointer_cast<const T>(all.shared);
    }
    /// A ref without a call: its value, which is in the memory of this process, or an object.
    [[nodiscard]] static counted_ptr<ref_state> of_value(stored&& held) {
        counted_ptr<ref_state> made(new ref_state);
        made->finish_with(std::move(held));
        return made;
    }
    [[nodiscard]] static counted_ptr<ref_state> of_object(const objects::object_ptr& held) {
        counted_ptr<ref_state> made(new ref_state);
        made->finish_with_object(held);
        return made;
    }
    /// Ends the call with a value of this process: that of a method of an actor here.
    template <class... V>
    void finish_with(V&&... result) {
        value.emplace(std::forward<V>(result)...);
        finished();
    }

protected:
    result<void> take_value(byte_span bytes) override {
        if constexpr (std::is_void_v<T>) {
            (void)bytes;
            value.emplace();
            return {};
        } else {
            wire::reader in(bytes);
            auto decoded = wire::detail::fresh<T>();
            if (!wire::detail::read(in, decoded) || !in.finish()) [[unlikely]]
                return in.status();
            value.emplace(std::move(decoded));
            return {};
        }
    }
    result<void> take_object(const objects::object_ptr& from) override {
        if constexpr (storable<T>) {
            extra().object = from;
            return {};
        } else {
            return call_base::take_object(from);
        }
    }
};

void cancel_call(call_base& call, bool by_force) noexcept;
/// Throws not_supported for methods.
void check_force(const function_record& fn);

/// Suspends until the call is done, and its value can be read. Cancelling the awaiting task ends the
/// wait, not the call.
template <class T>
class ref_waiter : public value_waiter {
public:
    explicit ref_waiter(counted_ptr<ref_state<T>> call) noexcept : state_(std::move(call)) {}
    bool await_ready() const noexcept { return state_->is_done() && !state_->must_be_read(); }
    template <skein::detail::promise_with_context Promise>
    bool await_suspend(std::coroutine_handle<Promise> h) {
        if (!arm(h)) return false;
        state_->waiters.push_back(*this);
        if (state_->is_done()) [[unlikely]]
            state_->read_value();
        return true;
    }

protected:
    /// What it has waited for; throws what it has failed with.
    [[nodiscard]] ref_state<T>& settled() const {
        // A value that is there is delivered even to a cancelled task.
        if (!state_->is_done() || state_->must_be_read()) throw_if_cancelled();
        if (state_->failed()) state_->why().raise();
        return *state_;
    }

private:
    counted_ptr<ref_state<T>> state_;
};

template <class T, bool Move>
class ref_awaiter : public ref_waiter<T> {
public:
    using ref_waiter<T>::ref_waiter;
    T await_resume() {
        [[maybe_unused]] auto& ended = this->settled();
        if constexpr (!std::is_void_v<T>) {
            if (!ended.value && ended.object()) [[unlikely]]
                return ended.copy_of_object();
            if constexpr (Move) {
                if (ended.value && (ended.uses() == 1 || !std::is_copy_constructible_v<T>))
                    return std::move(*ended.value);
            }
            if constexpr (std::is_copy_constructible_v<T>)
                return ended.get();
            else
                refuse_shared_value();
        }
    }
};

} // namespace rt::detail

/// A counted reference to the result of one remote call; one pointer wide. Belongs to one loop.
template <class T>
class ref {
public:
    using value_type = T;

    ref() noexcept = default;
    explicit ref(counted_ptr<rt::detail::ref_state<T>> call) noexcept : state_(std::move(call)) {}

    /// False if default-constructed or moved from.
    explicit operator bool() const noexcept { return static_cast<bool>(state_); }
    /// True when awaiting it would not suspend.
    [[nodiscard]] bool ready() const noexcept { return state_->is_done(); }

    /// Suspends until the call is done, resumes from the loop's queue; gives a copy of the value.
    ///   errors  remote_error (the function threw), worker_lost, timeout (.deadline), cancelled
    auto operator co_await() const& noexcept {
        static_assert(std::is_void_v<T> || std::is_copy_constructible_v<T>,
                      "skein: this result cannot be copied: co_await std::move(ref) takes it out");
        return rt::detail::ref_awaiter<T, false>(state_);
    }
    /// The same, but takes the value out when this is the last ref to it.
    auto operator co_await() && noexcept {
        return rt::detail::ref_awaiter<T, true>(std::move(state_));
    }

    /// Asks the call to end: at once if it has not been sent, else at its next await on the worker.
    /// The ref then fails with errc::cancelled, unless a value comes first.
    void cancel() const noexcept { rt::detail::cancel_call(*state_, false); }
    /// The same for a task that may not listen, a plain function that computes: when it has not
    /// ended a tenth of a second later, its worker's process is ended, and another one started in
    /// its place. Calls that it has made are cancelled so, too. What else runs on that worker is
    /// lost with it, as when it dies (tasks run again). A worker that actors live on is not ended:
    /// the log says so, and the task goes on to its end.
    ///   errors  not_supported: a call of an actor, see kill()
    void cancel_by_force() const {
        if (state_->fn != nullptr) rt::detail::check_force(*state_->fn);
        rt::detail::cancel_call(*state_, true);
    }

    /// Says what to write instead.
    template <class Never = void>
    [[noreturn]] T get() const {
        static_assert(!std::is_void_v<Never>,
                      "skein: a ref has no get(): auto value = co_await ref, inside a coroutine; "
                      "threads make calls through a skein::session, and get() a pending");
    }

    [[nodiscard]] const counted_ptr<rt::detail::ref_state<T>>& state() const noexcept {
        return state_;
    }

private:
    counted_ptr<rt::detail::ref_state<T>> state_;
};

/// A task that ends with the ref: what all, any, race, as_completed and with_timeout use.
template <class T>
[[nodiscard]] task<T> as_task(ref<T> r) {
    co_return co_await std::move(r);
}

/// Waits for the outcome and gives it as a value or error instead of throwing.
template <class T>
[[nodiscard]] task<result<T>> as_result(ref<T> r) {
    return as_result(as_task(std::move(r)));
}

/// Waits at most so long. The call itself goes on; use .with({.deadline = ...}) to bound the call.
template <class T>
[[nodiscard]] task<T> with_timeout(ref<T> r, time_span limit) {
    return with_timeout(as_task(std::move(r)), limit);
}

} // namespace skein

/// A ref travels when it has its outcome: the value itself, if it is in this process; the name of
/// the object that it is; or the failure.
template <class T>
struct skein::wire::codec<skein::ref<T>> {
    static constexpr const char* schema = "ref";
    static void encode(writer& to, const skein::ref<T>& r) {
        namespace d = skein::rt::detail;
        if (!r) return to.fixed(d::ref_tag::none);
        auto& state = *r.state();
        if (!state.is_done()) return d::note_pending(to, state);
        if (state.failed()) return d::encode_ref_failure(to, state.why());
        if (const auto* const all = d::pending_refs::current();
            all != nullptr && all->copies() && state.is_unread())
            return d::note_pending(to, state);
        if (state.object() && d::encode_object(to, state.object())) return;
        to.fixed(d::ref_tag::value);
        if constexpr (std::is_void_v<T>) {
        } else if (!state.value && state.object()) {
            const auto copy = state.copy_of_object();
            skein::wire::encode(to, copy);
        } else {
            skein::wire::encode(to, state.get());
        }
    }
    static skein::result<void> decode(reader& from, skein::ref<T>& into) {
        namespace d = skein::rt::detail;
        using state = d::ref_state<T>;
        d::ref_tag what{};
        skein::rt::failure why{skein::error(skein::errc::unknown, ""), nullptr};
        skein::objects::object_ptr object;
        if (!d::decode_ref_head(from, what, why, object)) return from.status();
        skein::counted_ptr<state> made;
        if (what == d::ref_tag::none) {
            into = skein::ref<T>();
            return {};
        }
        if (what == d::ref_tag::value) {
            auto value = skein::wire::detail::fresh<typename state::stored>();
            if (!skein::wire::detail::read(from, value)) return from.status();
            made = state::of_value(std::move(value));
        } else if (what == d::ref_tag::object) {
            made = state::of_object(object);
        } else {
            made = skein::counted_ptr<state>(new state);
            made->fail(std::move(why));
        }
        into = skein::ref<T>(std::move(made));
        return {};
    }
};

#if SKEIN_HEADER_ONLY
#include <skein/rt/runtime.hpp> // the bodies of a call are those of its runtime
#endif