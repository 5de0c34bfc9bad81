// SPDX-License-Identifier: Apache-2.0
#pragma once
// generator<T>: a lazy coroutine that gives items one by one, and may await between them.
//
//     generator<int> counts(int to) {
//         for (int i = 0; i < to; ++i) {
//             co_await sleep_for(1ms);
//             co_yield i;
//         }
//     }
//     auto g = counts(3);
//     while (auto n = co_await g.next()) use(*n);
//
// Its body runs inside next(), on the loop and under the cancellation and the context of who awaits
// that; between two calls of next() it stands at a co_yield. So there are three ways to end one,
// and who ends it goes on only when its locals are gone:
//
//     its body returns or throws  next() gives nothing, or the exception; the frame is gone by then
//     co_await g.close()          the co_yield at which it stands throws cancelled: the body unwinds,
//                                 and its clean-up may await; close() ends when it has ended
//     the generator is dropped    a destructor cannot wait: the frame is destroyed where it stands.
//                                 Destructors of locals run, catch blocks do not
//
// A generator whose clean-up awaits is therefore closed, also when its user throws:
// with_generator(g, body) does that. Nobody can drop one whose body runs: who awaits next() is
// suspended until it stands at a co_yield again or has ended, cancelled or not. A cancelled next()
// ends a generator as it ends a task: what the body awaits throws. To bound one wait alone, wait
// elsewhere (a channel, a stream).
//
// Name it, then yield it: a co_yield is a co_await, with the same trap of g++ 12 (docs/traps.md).

#include <skein/core/cancel.hpp>
#include <skein/core/check.hpp>
#include <skein/core/error.hpp>
#include <skein/core/task.hpp>

#include <coroutine>
#include <exception>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

namespace skein {

template <class T>
class generator;

namespace detail {

/// What generators of all types have in common.
struct generator_promise_base : promise_base {
    std::suspend_always initial_suspend() const noexcept { return {}; }
    final_awaiter final_suspend() const noexcept { return {}; }
    void unhandled_exception() noexcept { failure = std::current_exception(); }
    void return_void() const noexcept {}

    bool started = false; ///< its body has begun
    bool runs = false;    ///< somebody awaits it
    bool closing = false; ///< where it stands, and where it yields from now on, cancelled is thrown
    std::exception_ptr failure;
};

/// A co_yield: the item lies here until who has asked for the next one comes again.
template <class T>
class yielded {
public:
    explicit yielded(T item) noexcept(std::is_nothrow_move_constructible_v<T>)
        : item_(std::move(item)) {}
    bool await_ready() const noexcept { return false; }
    template <class Promise>
    void await_suspend(std::coroutine_handle<Promise> h) noexcept {
        of_ = &h.promise();
        h.promise().item = std::addressof(item_);
        next_to_run = h.promise().continuation;
    }
    void await_resume() const {
        if (of_->closing) throw cancelled_error();
    }

private:
    T item_;
    generator_promise_base* of_ = nullptr;
};

template <class T>
class yielded<T&> {
public:
    explicit yielded(T& item) noexcept : item_(std::addressof(item)) {}
    bool await_ready() const noexcept { return false; }
    template <class Promise>
    void await_suspend(std::coroutine_handle<Promise> h) noexcept {
        of_ = &h.promise();
        h.promise().item = item_;
        next_to_run = h.promise().continuation;
    }
    void await_resume() const {
        if (of_->closing) throw cancelled_error();
    }

private:
    T* item_;
    generator_promise_base* of_ = nullptr;
};

template <class T>
struct generator_promise : generator_promise_base {
    generator<T> get_return_object() noexcept;
    yielded<T> yield_value(T value) noexcept(std::is_nothrow_move_constructible_v<T> ||
                                             std::is_reference_v<T>) {
        return yielded<T>(std::forward<T>(value));
    }
    std::remove_reference_t<T>* item = nullptr; ///< what it stands at
};

} // namespace detail

/// Items of a coroutine, one by one: values, or references (generator<const row&>) to what lives
/// until the next one is asked for. Move-only; owns its frame. One task at a time asks for items.
template <class T>
class [[nodiscard]] generator {
    static_assert(!std::is_void_v<T> && !std::is_rvalue_reference_v<T> &&
                      (std::is_reference_v<T> || !std::is_const_v<T>),
                  "skein: a generator gives values or references: generator<row>, "
                  "generator<row&>, generator<const row&>");

public:
    using promise_type = detail::generator_promise<T>;
    using value_type = T;
    /// What next() gives: the item, or nothing; of references a pointer, or null.
    using item_type =
        std::conditional_t<std::is_reference_v<T>, std::remove_reference_t<T>*, std::optional<T>>;

    generator() noexcept = default; ///< it has ended
    generator(generator&& other) noexcept : frame_(std::exchange(other.frame_, {})) {
        check_rests();
    }
    generator& operator=(generator&& other) noexcept {
        if (this != &other) {
            drop();
            frame_ = std::exchange(other.frame_, {});
            check_rests();
        }
        return *this;
    }
    /// Where it stands it is destroyed: see above for what does not run then.
    ~generator() { drop(); }

    /// False when there are no more items: it has ended, or was moved from.
    explicit operator bool() const noexcept { return static_cast<bool>(frame_); }

    class next_awaiter {
    public:
        explicit next_awaiter(generator& of) noexcept : of_(of) {}
        next_awaiter(const next_awaiter&) = delete;
        next_awaiter& operator=(const next_awaiter&) = delete;
        ~next_awaiter() { // of a frame that is destroyed while it waits
            if (waits_) of_.frame_.promise().runs = false;
        }
        bool await_ready() const noexcept { return !of_.frame_; }
        template <detail::promise_with_context Promise>
        void await_suspend(std::coroutine_handle<Promise> parent) noexcept {
            waits_ = true;
            of_.run_for(parent);
        }
        item_type await_resume() {
            if (!std::exchange(waits_, false)) return {};
            auto& promise = of_.frame_.promise();
            promise.runs = false;
            if (of_.frame_.done()) {
                const auto failure = of_.end();
                if (failure) std::rethrow_exception(failure);
                return {};
            }
            if constexpr (std::is_reference_v<T>)
                return promise.item;
            else
                return item_type(std::in_place, std::move(*promise.item));
        }

    private:
        generator& of_;
        bool waits_ = false;
    };
    /// Runs the body to its next co_yield, and gives its item; nothing when it has ended.
    ///   errors  what the body throws: then it has ended
    [[nodiscard]] next_awaiter next() noexcept { return next_awaiter(*this); }

    /// Ends it: where it stands cancelled is thrown, and its clean-up runs, under the cancellation
    /// of the awaiting task (shield() it where that may be cancelled). Nothing happens if it has
    /// ended. The generator must outlive the task.
    ///   errors  what the clean-up throws, but for cancelled; internal: it yields once more
    [[nodiscard]] task<void> close() { return close(this); }

private:
    friend promise_type;
    explicit generator(std::coroutine_handle<promise_type> frame) noexcept : frame_(frame) {}

    /// Its body goes on, for a coroutine that waits for it.
    template <class Promise>
    void run_for(std::coroutine_handle<Promise> parent) noexcept {
        auto& promise = frame_.promise();
        SKEIN_CHECK(!promise.runs, "a generator is asked for an item while somebody waits for one");
        promise.runs = promise.started = true;
        promise.continuation = parent;
        promise.cancel = parent.promise().cancel;
        promise.context = parent.promise().context;
        detail::next_to_run = frame_;
    }
    /// Gives what its body has thrown.
    std::exception_ptr end() noexcept {
        auto failure = std::move(frame_.promise().failure);
        std::exchange(frame_, {}).destroy();
        return failure;
    }
    void drop() noexcept {
        check_rests();
        if (frame_) std::exchange(frame_, {}).destroy();
    }
    void check_rests() const noexcept {
        SKEIN_CHECK(!frame_ || !frame_.promise().runs,
                    "a generator is dropped or moved while somebody waits for its next item");
    }

    struct last_run {
        generator& of;
        bool await_ready() const noexcept { return false; }
        template <detail::promise_with_context Promise>
        void await_suspend(std::coroutine_handle<Promise> parent) noexcept {
            of.run_for(parent);
        }
        void await_resume() const noexcept { of.frame_.promise().runs = false; }
    };
    static task<void> close(generator* self) {
        if (!self->frame_ || !self->frame_.promise().started) {
            self->drop();
            co_return;
        }
        self->frame_.promise().closing = true;
        last_run unwinding{*self};
        co_await unwinding;
        if (!self->frame_.done()) {
            self->drop();
            throw error(errc::internal, "a generator yields an item while it is closed: what its "
                                        "co_yield throws then has to end it");
        }
        const auto failure = self->end();
        try {
            if (failure) std::rethrow_exception(failure);
        } catch (const error& e) {
            if (e.code() != errc::cancelled) throw;
        }
    }

    std::coroutine_handle<promise_type> frame_;
};

template <class T>
generator<T> detail::generator_promise<T>::get_return_object() noexcept {
    return generator<T>(std::coroutine_handle<generator_promise>::from_promise(*this));
}

/// Runs body(generator&, args...), a task<void>, then closes the generator, also when the body
/// throws or is cancelled; the clean-up is out of reach of the cancellation. The body's error is
/// rethrown, else that of the clean-up.
template <class T, class Body, class... Args>
[[nodiscard]] task<void> with_generator(generator<T> items, Body body, Args... args) {
    std::exception_ptr failure;
    try {
        auto work = body(items, std::move(args)...);
        co_await work;
    } catch (...) {
        failure = std::current_exception();
    }
    try {
        auto closing = shield(items.close());
        co_await closing;
    } catch (...) {
        if (!failure) failure = std::current_exception();
    }
    if (failure) std::rethrow_exception(std::move(failure));
}

} // namespace skein
