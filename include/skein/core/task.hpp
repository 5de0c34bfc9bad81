// SPDX-License-Identifier: Apache-2.0
#pragma once
// task<T>: a lazy coroutine that gives one T, an exception, or nothing.
//
// It starts when it is awaited or spawned into a scope, runs on the loop of its awaiter and never
// changes threads. The awaiter is resumed inside the same loop turn, right after the task ends.
// Awaits go through a trampoline (detail below), so a million tasks that finish at once neither
// overflow the stack nor depend on tail calls. Frames are pooled.
//
//     task<int> answer() { co_return 42; }
//     task<void> app()   { auto t = answer(); int x = co_await std::move(t); }
//
// Name it, then await it: g++ 12 destroys aggregates and capturing lambdas that are temporaries of
// a co_await expression twice (docs/traps.md).

#include <skein/core/check.hpp>
#include <skein/core/frame_pool.hpp>
#include <skein/core/task_context.hpp>

#include <concepts>
#include <coroutine>
#include <exception>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

namespace skein {

template <class T = void>
class task;

namespace detail {

class cancel_state;

/// The coroutine to run as soon as the running one is suspended; the loop's trampoline reads it.
inline constinit thread_local std::coroutine_handle<> next_to_run{};

/// What every coroutine of skein carries: who waits for it, the cancellation it runs under, and
/// what it belongs to (held by the task that brought it in, see under_context and self_owned).
struct promise_base {
    std::coroutine_handle<> continuation{};
    cancel_state* cancel = nullptr;
    task_context* context = nullptr;

    static void* operator new(std::size_t bytes) { return frame_pool::allocate(bytes); }
    static void operator delete(void* p, std::size_t bytes) noexcept {
        frame_pool::release(p, bytes);
    }
};

/// Leaf awaitables of skein can be awaited only inside skein coroutines.
template <class Promise>
concept promise_with_context = std::derived_from<Promise, promise_base>;

/// Ends a task: its awaiter is next.
struct final_awaiter {
    bool await_ready() const noexcept { return false; }
    template <class Promise>
    void await_suspend(std::coroutine_handle<Promise> h) const noexcept {
        next_to_run = h.promise().continuation;
    }
    void await_resume() const noexcept {}
};

template <class T>
struct task_promise : promise_base {
    using stored = std::conditional_t<std::is_reference_v<T>, std::remove_reference_t<T>*, T>;

    task<T> get_return_object() noexcept;
    std::suspend_always initial_suspend() const noexcept { return {}; }
    final_awaiter final_suspend() const noexcept { return {}; }
    void unhandled_exception() noexcept { failure = std::current_exception(); }

    template <class U>
        requires std::convertible_to<U&&, T>
    void return_value(U&& result) {
        if (std::exchange(has_value, false))
            [[unlikely]] // a destructor threw behind another co_return
            std::destroy_at(std::addressof(value));
        if constexpr (std::is_reference_v<T>) {
            std::construct_at(&value, std::addressof(result));
        } else {
            std::construct_at(std::addressof(value), std::forward<U>(result));
        }
        has_value = true;
    }
    T take() {
        if (failure) std::rethrow_exception(std::move(failure));
        if constexpr (std::is_reference_v<T>) {
            return static_cast<T>(*value);
        } else {
            return std::move(value);
        }
    }

    task_promise() noexcept {}
    ~task_promise() {
        if (has_value) std::destroy_at(std::addressof(value));
    }

    // not a std::optional, which costs every file that includes a task several times as much
    union {
        stored value;
    };
    bool has_value = false;
    std::exception_ptr failure;
};

template <>
struct task_promise<void> : promise_base {
    task<void> get_return_object() noexcept;
    std::suspend_always initial_suspend() const noexcept { return {}; }
    final_awaiter final_suspend() const noexcept { return {}; }
    void unhandled_exception() noexcept { failure = std::current_exception(); }
    void return_void() const noexcept {}
    void take() {
        if (failure) std::rethrow_exception(std::move(failure));
    }
    std::exception_ptr failure;
};

template <class T>
class await_under;
template <class T>
class under_context;

/// What awaiting a task does: the task is next, its awaiter is its continuation.
template <class T>
class task_awaiter {
public:
    explicit task_awaiter(std::coroutine_handle<task_promise<T>> frame) noexcept : frame_(frame) {}
    bool await_ready() const noexcept { return false; }
    template <promise_with_context Promise>
    void await_suspend(std::coroutine_handle<Promise> parent) const noexcept {
        auto& promise = frame_.promise();
        promise.continuation = parent;
        promise.cancel = parent.promise().cancel;
        promise.context = parent.promise().context;
        next_to_run = frame_;
    }
    T await_resume() const { return frame_.promise().take(); }

private:
    std::coroutine_handle<task_promise<T>> frame_;
};

} // namespace detail

/// A lazy computation. Move-only; owns its frame. Await it at most once.
template <class T>
class [[nodiscard]] task {
public:
    using promise_type = detail::task_promise<T>;
    using value_type = T;

    task() noexcept = default;
    task(task&& other) noexcept : frame_(std::exchange(other.frame_, {})) {}
    task& operator=(task&& other) noexcept {
        if (this != &other) {
            if (frame_) frame_.destroy();
            frame_ = std::exchange(other.frame_, {});
        }
        return *this;
    }
    ~task() {
        if (frame_) frame_.destroy();
    }

    /// False after being moved from.
    explicit operator bool() const noexcept { return static_cast<bool>(frame_); }

    /// Starts the task and suspends until it ends; gives its value or rethrows its exception. It
    /// runs under the cancellation of the awaiting task.
    detail::task_awaiter<T> operator co_await() noexcept {
        SKEIN_CHECK(frame_ && !frame_.done(), "a task is awaited that was moved from or has ended");
        return detail::task_awaiter<T>(frame_);
    }

    /// Says what to write instead.
    template <class Never = void>
    [[noreturn]] T get() const {
        static_assert(!std::is_void_v<Never>,
                      "skein: a task has no get(): auto value = co_await std::move(task), inside a "
                      "coroutine; a main runs one with skein::run(), a thread with session::run()");
    }
    /// Says what to write instead.
    template <auto Method, class... A>
    [[noreturn]] void call(A&&...) const {
        static_assert(sizeof...(A) > 1'000'000,
                      "skein: this is a task that gives a handle, not the handle: auto handle = "
                      "co_await skein::actor<T>(...); then handle.call<&T::m>(...)");
    }

private:
    friend promise_type;
    template <class>
    friend class detail::await_under;
    template <class>
    friend class detail::under_context;
    explicit task(std::coroutine_handle<promise_type> frame) noexcept : frame_(frame) {}
    std::coroutine_handle<promise_type> frame_;
};

namespace detail {

template <class T>
task<T> task_promise<T>::get_return_object() noexcept {
    return task<T>(std::coroutine_handle<task_promise>::from_promise(*this));
}
inline task<void> task_promise<void>::get_return_object() noexcept {
    return task<void>(std::coroutine_handle<task_promise>::from_promise(*this));
}

/// Awaits a task under another cancellation than the awaiter's. Name it, then await it.
template <class T>
class await_under {
public:
    await_under(task<T> work, cancel_state* cancel) noexcept
        : work_(std::move(work)), cancel_(cancel) {}
    bool await_ready() const noexcept { return false; }
    template <promise_with_context Promise>
    void await_suspend(std::coroutine_handle<Promise> parent) noexcept {
        auto& promise = work_.frame_.promise();
        promise.continuation = parent;
        promise.cancel = cancel_;
        promise.context = parent.promise().context;
        next_to_run = work_.frame_;
    }
    T await_resume() { return work_.frame_.promise().take(); }

private:
    task<T> work_;
    cancel_state* cancel_;
};

/// Awaits a task that belongs to something else than the awaiter. Name it, then await it.
template <class T>
class under_context {
public:
    under_context(counted_ptr<task_context> context, task<T> work) noexcept
        : context_(std::move(context)), work_(std::move(work)) {}
    bool await_ready() const noexcept { return false; }
    template <promise_with_context Promise>
    void await_suspend(std::coroutine_handle<Promise> parent) noexcept {
        auto& promise = work_.frame_.promise();
        promise.continuation = parent;
        promise.cancel = parent.promise().cancel;
        promise.context = current_context = context_.get();
        before_ = parent.promise().context;
        next_to_run = work_.frame_;
    }
    T await_resume() {
        current_context = before_;
        return work_.frame_.promise().take();
    }

private:
    counted_ptr<task_context> context_;
    task_context* before_ = nullptr;
    task<T> work_;
};

} // namespace detail

/// Runs work, and all that it awaits and spawns, under a context (empty: under none).
template <class T>
[[nodiscard]] task<T> with_context(counted_ptr<task_context> context, task<T> work) {
    detail::under_context<T> inner(std::move(context), std::move(work));
    co_return co_await inner;
}

} // namespace skein
