// SPDX-License-Identifier: Apache-2.0
#pragma once
// Work that would block the loop (a file, a long computation) on a small pool of threads.
//
//     auto sum = net::offload([data] { return checksum(data); });
//     auto value = co_await sum;           // resumed on the loop it was called from
//
// On a simulated loop the work runs inline and its end comes after a drawn time, and after what the
// work has said by seem_to_take().

#include <skein/core/cancel.hpp>
#include <skein/core/clock.hpp>
#include <skein/core/function.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/task.hpp>
#include <skein/core/time.hpp>
#include <skein/core/wait.hpp>

#include <concepts>
#include <condition_variable>
#include <coroutine>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace skein::net {

/// A pool of threads for blocking work. The destructor waits for the work in it.
class offload_pool {
public:
    ///   errors  exhausted: the system starts no more threads
    explicit offload_pool(unsigned threads);
    offload_pool(const offload_pool&) = delete;
    offload_pool& operator=(const offload_pool&) = delete;
    ~offload_pool();

    /// Thread-safe.
    void submit(unique_function<void()> work);

    /// The process's own pool: as many threads as there are cores, two at least, made when first
    /// used.
    static offload_pool& shared();

private:
    void main();
    void stop();

    std::mutex mutex_; // guards queue_ and stopping_
    std::condition_variable wake_;
    std::deque<unique_function<void()>> queue_;
    bool stopping_ = false;
    std::vector<std::thread> threads_;
};

namespace detail {

/// Suspends until the pool has run the call. Not cancellable: the work refers to the frame.
class pool_wait : public waiter {
public:
    pool_wait(offload_pool& pool, unique_function<void()> call)
        : pool_(pool), call_(std::move(call)) {}
    bool await_ready() const noexcept { return false; }
    template <skein::detail::promise_with_context Promise>
    bool await_suspend(std::coroutine_handle<Promise> h) {
        (void)arm(h, false);
        loop* const home = &loop::current();
        pool_.submit([this, home] {
            call_();
            home->post_from_any_thread([this] { wake(); });
        });
        return true;
    }
    void await_resume() const noexcept {}

private:
    offload_pool& pool_;
    unique_function<void()> call_;
};

task<void> pause(duration length);

/// What the work that this thread runs has said.
inline thread_local duration seeming{};

} // namespace detail

/// Said by work in offload(), perhaps several times: on a simulated loop its end comes so much
/// later. Functions of tests stand for expensive ones so; elsewhere it changes nothing.
inline void seem_to_take(duration more) noexcept { detail::seeming += more; }

/// Runs f on a thread of the pool; gives its result or rethrows its exception.
///   f       must not touch the loop's objects; it is destroyed on the loop's thread
///   spent   gets how long f ran, without what it waited for a thread; outlives the task
///   errors  those of f. A cancelled task still waits for the end of f, then throws cancelled at
///           its next await
///   resumes the caller, on its own loop
template <class F>
    requires std::invocable<F&>
[[nodiscard]] task<std::invoke_result_t<F&>> offload(F f, offload_pool* pool = nullptr,
                                                     duration* spent = nullptr) {
    using T = std::invoke_result_t<F&>;
    std::exception_ptr failure;
    std::conditional_t<std::is_void_v<T>, std::optional<bool>, std::optional<T>> value;
    duration took{};
    const auto work = [&f, &value, &failure, &took] {
        const auto begin = system_clock().now();
        try {
            if constexpr (std::is_void_v<T>) {
                f();
                value = true;
            } else {
                value.emplace(f());
            }
        } catch (...) {
            failure = std::current_exception();
        }
        took = between(begin, system_clock().now());
    };
    if (const auto length = loop::current().simulated_work_time()) {
        detail::seeming = {};
        work();
        took = *length + detail::seeming;
        auto pausing = detail::pause(took);
        auto shielded = shield(std::move(pausing));
        co_await shielded;
    } else {
        detail::pool_wait done(pool != nullptr ? *pool : offload_pool::shared(), work);
        co_await done;
    }
    if (spent != nullptr) *spent = took;
    if (failure) std::rethrow_exception(std::move(failure));
    if constexpr (!std::is_void_v<T>) co_return std::move(*value);
}

} // namespace skein::net

#if SKEIN_HEADER_ONLY
#include <skein/net/detail/offload.ipp>
#endif
