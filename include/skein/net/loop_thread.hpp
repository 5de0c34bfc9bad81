// SPDX-License-Identifier: Apache-2.0
#pragma once
// A thread of its own with a real loop: where sockets live while another thread computes.
//
//     net::loop_thread io("comm");
//     int n = io.run([&] { return count_peers(network); });    // blocks this thread, not the loop
//     // the destructor stops the loop and joins
//
// Signals are blocked on the thread, so that they reach the program's main thread.

#include <skein/core/check.hpp>
#include <skein/core/event.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/task.hpp>
#include <skein/net/real_loop.hpp>

#include <concepts>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>

namespace skein::net {

/// Stops and joins in the destructor; all tasks started through run() have ended by then.
class loop_thread {
public:
    explicit loop_thread(std::string name);
    loop_thread(const loop_thread&) = delete;
    loop_thread& operator=(const loop_thread&) = delete;
    ~loop_thread();

    /// Calls f() on the loop's thread; f returns task<T>, which is run to its end there.
    ///   result  T; an exception of f or of the task is rethrown here
    ///   thread  any except the loop's own; blocks the caller. f lives until the task has ended
    template <class F>
        requires std::invocable<F&>
    auto run(F f) {
        using T = typename std::invoke_result_t<F&>::value_type;
        SKEIN_CHECK(std::this_thread::get_id() != thread_.get_id(),
                    "loop_thread::run on its own thread");
        outcome<T> answer;
        loop_->post_from_any_thread(
            [this, &f, &answer] { tasks_->spawn(deliver<T>(&f, &answer)); });
        std::unique_lock lock(answer.mutex);
        answer.ended.wait(lock, [&] { return answer.done; });
        if (answer.failure) std::rethrow_exception(std::move(answer.failure));
        if constexpr (!std::is_void_v<T>) return T(std::move(*answer.value));
    }

    /// The loop; only post_from_any_thread may be called from other threads.
    [[nodiscard]] real_loop& loop() noexcept { return *loop_; }

private:
    /// Where the caller waits. An exception is moved through it: no thread keeps a share of it, so
    /// its last release never races with the reader.
    template <class T>
    struct outcome {
        std::mutex mutex; // guards all
        std::condition_variable ended;
        std::optional<std::conditional_t<std::is_void_v<T>, bool, T>> value;
        std::exception_ptr failure;
        bool done = false;
    };

    template <class T, class F>
    static task<void> deliver(F* f, outcome<T>* answer) {
        std::optional<std::conditional_t<std::is_void_v<T>, bool, T>> value;
        std::exception_ptr failure;
        try {
            auto work = (*f)();
            if constexpr (std::is_void_v<T>) {
                co_await work;
            } else {
                value.emplace(co_await work);
            }
        } catch (...) {
            failure = std::current_exception();
        }
        const std::lock_guard lock(answer->mutex);
        answer->value = std::move(value);
        answer->failure = std::move(failure);
        failure = nullptr;
        answer->done = true;
        answer->ended.notify_one();
    }

    void main(const std::string& name, outcome<void>& ready);

    // Written by the thread before `ready`, then only read.
    real_loop* loop_ = nullptr;
    event* stop_ = nullptr;
    scope* tasks_ = nullptr;
    std::thread thread_;
};

} // namespace skein::net

#if SKEIN_HEADER_ONLY
#include <skein/net/detail/loop_thread.ipp>
#endif
