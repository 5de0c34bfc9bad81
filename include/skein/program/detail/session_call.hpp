// SPDX-License-Identifier: Apache-2.0
#pragma once
// The templates behind program/session.hpp: how a call gets from a thread to the loop, and its
// outcome back.
//
// Arguments are converted to the parameter types on the calling thread, once, and move to the loop,
// which encodes them: only there can a pending be resolved, and a handle be kept until the call has
// ended.

#include <skein/core/clock.hpp>
#include <skein/program/pending.hpp>
#include <skein/rt/detail/actor.hpp>
#include <skein/rt/detail/loops_own.hpp>
#include <skein/rt/put.hpp>

#include <concepts>
#include <exception>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace skein {

template <class T>
class shared_actor;

namespace program::detail {

// ---- types on both sides -----------------------------------------------------------------------

/// A result as threads see it.
template <class R>
struct shared_result {
    using type = R;
};
template <class T>
struct shared_result<actor_handle<T>> {
    using type = shared_actor<T>;
};

/// An argument of a thread as the loop sees it.
template <class A>
struct argument_inside {
    using type = A;
    static constexpr bool is_shared = false;
    static_assert(!rt::detail::holds_loops_own<std::remove_cvref_t<A>>(),
                  "skein: a ref, an actor_handle or a placement_group belongs to the loop it was "
                  "made on: give a session's call a skein::pending, a skein::shared_actor or the "
                  "group's name");
};
template <class A>
    requires(requires { typename std::remove_cvref_t<A>::shared_with_threads; })
struct argument_inside<A> {
    using type = typename std::remove_cvref_t<A>::shared_with_threads;
    static constexpr bool is_shared = true;
};

/// Whether a value may leave its loop: as it is, or as what threads see of it.
template <class R>
consteval bool check_shared_result() {
    constexpr bool can_leave =
        !std::is_same_v<typename shared_result<R>::type, R> || !rt::detail::holds_loops_own<R>();
    static_assert(can_leave,
                  "skein: not supported: a value that belongs to its loop (a ref, a "
                  "placement_group, something with a handle inside) cannot leave it; return the "
                  "actor_handle itself, or use it inside of session::run()");
    return can_leave;
}

// ---- the calling thread ------------------------------------------------------------------------

/// Options on their way to the loop. Empty: none were given.
template <class Options>
class kept_options {
public:
    kept_options() noexcept = default;
    explicit kept_options(rt::detail::owned_options<Options> how)
        : parts_(std::make_unique<parts>(std::move(how))) {
        if (parts_->how->deadline != no_deadline) parts_->made = system_clock().now();
    }
    /// On the loop, views of this: what is left of a deadline counts from the call.
    [[nodiscard]] Options take() const {
        if (!parts_) return {};
        Options how = *parts_->how;
        if (how.deadline != no_deadline) how.deadline -= loop::current().exact_now() - parts_->made;
        return how;
    }

private:
    struct parts {
        explicit parts(rt::detail::owned_options<Options> h) : how(std::move(h)) {}
        rt::detail::owned_options<Options> how;
        time_point made{};
    };
    std::unique_ptr<parts> parts_;
};

/// An argument that is shared, or a P of its own.
template <class P, class A>
auto carry(A&& a) {
    using given = std::remove_cvref_t<A>;
    if constexpr (argument_inside<A>::is_shared) {
        if constexpr (requires { a.shared(); })
            SKEIN_CHECK(a, "an empty skein::pending is an argument");
        return given(std::forward<A>(a));
    } else {
        return rt::detail::hold_argument<P>(std::forward<A>(a));
    }
}

// ---- the loop's thread -------------------------------------------------------------------------

/// A call whose outcome a thread waits for.
template <class R>
class session_call final : public rt::detail::ref_state<R> {
    using shared = typename shared_result<R>::type;

public:
    explicit session_call(pending_writer<shared> to) noexcept : to_(std::move(to)) {
        to_->call = this;
        this->watchers_ = 1; // the thread
    }
    ~session_call() override { to_->call = nullptr; }

    /// An argument of another call, which may read the value later.
    [[nodiscard]] ref<R> lend() {
        lent_ = true;
        return ref<R>(counted_ptr<rt::detail::ref_state<R>>(this));
    }

protected:
    void take_failure(const rt::failure&) override {
        if (!lent_ && to_->readers.load(std::memory_order_relaxed) == 0) this->watchers_ = 0;
    }
    void on_finished() override {
        if (this->is_unread()) return this->read_value(); // then on_read()
        deliver();
    }
    void on_read() override {
        if (to_->call == this) deliver();
    }

private:
    void deliver() {
        to_->call = nullptr;
        if (this->failed()) return to_->fail(this->why());
        try {
            if constexpr (rt::detail::storable<R>)
                if (this->object()) return to_->succeed_with(this->bytes_of_object());
            if constexpr (std::is_void_v<R>) {
                to_->succeed({});
            } else if constexpr (rt::detail::is_of_a_loop<R>) {
                const auto& handle = *this->value;
                to_->succeed(handle ? shared(to_->door->adopt(handle.queue())) : shared());
            } else if constexpr (std::is_copy_constructible_v<R>) {
                to_->succeed(lent_ ? R(*this->value) : R(std::move(*this->value)));
            } else {
                to_->succeed(std::move(*this->value));
            }
        } catch (...) { // a copy failed
            to_->fail({to_error(std::current_exception()), nullptr});
        }
    }

    const pending_writer<shared> to_;
    bool lent_ = false;
};

[[noreturn]] inline void refuse_other_session(const char* what) {
    throw error(errc::invalid_argument, std::string(what) + " of another session is an argument")
        .with_hint("make both through one session, or give it the value");
}

/// The ref behind an argument that was a pending.
template <class R, class V>
ref<R> ref_of(const pending_state<V>& from, const session_door& here) {
    static_assert(std::is_void_v<R> || std::is_copy_constructible_v<R>,
                  "skein: not supported: a pending as an argument whose value cannot be copied");
    if (from.door.get() != &here) refuse_other_session("a pending");
    if (from.call != nullptr) return static_cast<session_call<R>*>(from.call)->lend();
    if constexpr (rt::detail::storable<R>)
        if (from.object) return ref<R>(rt::detail::ref_state<R>::of_object(from.object->of()));
    counted_ptr<rt::detail::ref_state<R>> done(new rt::detail::ref_state<R>);
    if (const auto* why = from.failed()) {
        done->fail(*why);
    } else {
        if constexpr (rt::detail::is_of_a_loop<R>)
            done->value.emplace(*from.value ? R(from.value->cell()->queue) : R());
        else
            done->value.emplace(*from.value);
        done->state = rt::detail::phase::done;
    }
    return ref<R>(std::move(done));
}

template <class V>
auto inside_of(const pending<V>& held, const session_door& here) {
    return ref_of<typename result_inside<V>::type>(*held.shared(), here);
}
template <class T>
actor_handle<T> inside_of(const shared_actor<T>& held, const session_door& here) {
    if (!held) return {};
    if (held.cell()->door.get() != &here) refuse_other_session("an actor");
    return actor_handle<T>(held.cell()->queue);
}

/// An argument as the loop's own submission takes it.
template <class A>
decltype(auto) bring_in(std::remove_reference_t<A>& held, const session_door& here) {
    if constexpr (argument_inside<A>::is_shared) {
        return inside_of(held, here);
    } else {
        (void)here;
        return static_cast<A&&>(held);
    }
}

[[nodiscard]] inline error not_submitted(const rt::function_record& fn, const error& why) {
    error told(why.code(), fn.name + " did not run: " + why.text());
    if (!why.hint().empty()) told.with_hint(why.hint());
    return told;
}

/// Made on a thread, run on the loop.
template <auto F, class T, class R, class Arguments>
struct session_order {
    pending_writer<typename shared_result<R>::type> to;
    kept_options<call_options> how;
    std::shared_ptr<actor_cell> actor; ///< of a method
    Arguments arguments;

    void operator()() noexcept {
        auto& door = *to->door;
        const auto* const fn = to->fn;
        counted_ptr<rt::detail::actor_queue> queue;
        if (actor) queue = actor->queue;
        if (actor && !queue) return; // too late
        counted_ptr<rt::detail::ref_state<R>> call;
        try {
            const auto options = how.take();
            call = counted_ptr<rt::detail::ref_state<R>>(new session_call<R>(std::move(to)));
            auto& by = queue ? runtime_of(queue) : *door.self; // of a namespace: its space client
            std::apply(
                [&]<class... H>(H&... a) {
                    begin_call<F, T>(by, options, call, std::move(queue), bring_in<H>(a, door)...);
                },
                arguments);
        } catch (...) { // it was not submitted
            rt::failure why{not_submitted(*fn, to_error(std::current_exception())), nullptr};
            if (!call) return to->fail(std::move(why));
            if (!call->is_done()) call->fail(std::move(why));
        }
    }
};

/// Submits from any thread.
template <auto F, class T, class... A>
auto submit_from_thread(const std::shared_ptr<session_door>& door, kept_options<call_options> how,
                        std::shared_ptr<actor_cell> actor, A&&... args) {
    using traits = rt::detail::signature<decltype(F)>;
    using R = typename traits::result;
    using shared = typename shared_result<R>::type;
    if constexpr (rt::detail::check_call<F, T, typename argument_inside<A>::type...>() &&
                  check_shared_result<R>()) {
        (void)rt::detail::record<F, T>::registered;
        auto state =
            std::make_shared<pending_state<shared>>(door, &rt::detail::record<F, T>::entry());
        pending<shared> mine(state);
        [&]<class... P>(std::type_identity<std::tuple<P...>>) {
            using held = std::tuple<decltype(program::detail::carry<P>(std::forward<A>(args)))...>;
            std::unique_ptr<session_order<F, T, R, held>> what(new session_order<F, T, R, held>{
                pending_writer<shared>(std::move(state)), std::move(how), std::move(actor),
                held(program::detail::carry<P>(std::forward<A>(args))...)});
            (void)door->post([what = std::move(what)] { (*what)(); });
        }(std::type_identity<typename traits::arguments>());
        return mine;
    } else {
        return pending<shared>(); // a static_assert has said why
    }
}

/// Null: it is no object.
template <class T>
[[nodiscard]] task<objects::reading_ptr> put_to_read(rt::runtime* by, const T* value) {
    auto making = rt::detail::make_object<T>(by, value);
    auto object = co_await making;
    if (!object) co_return nullptr;
    auto reading = objects::read(std::move(object));
    co_return co_await reading;
}

/// A value that a session has stored, and that needs no call.
template <class T, class V>
[[nodiscard]] pending<T> put_from_thread(const std::shared_ptr<session_door>& door,
                                         objects::reading_ptr object, V&& value) {
    auto state = std::make_shared<pending_state<T>>(door, nullptr);
    if (object)
        state->succeed_with(std::move(object));
    else
        state->succeed(T(std::forward<V>(value)));
    return pending<T>(std::move(state));
}

} // namespace program::detail
} // namespace skein
