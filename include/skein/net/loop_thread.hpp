// SPDX-License-Identifier: Apache-2.0
#pragma once
// A thread of its own with a real loop: where sockets live while another thread computes.
//
//     net::loop_thread io("comm");
//     int n = io.run([&] { return count_peers(network); });    // blocks this thread, not the loop
//     // the destructor stops the loop and joins

#include <skein/core/event.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/task.hpp>
#include <skein/net/real_loop.hpp>

#include <pthread.h>

#include <concepts>
#include <condition_variable>
#include <csignal>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <variant>

namespace skein::net {
namespace detail {

/// Where the result of a task waits for the thread that asked for it.
template <class T>
struct handed_over {
    using stored = std::conditional_t<std::is_void_v<T>, std::monostate, T>;
    std::mutex guard;
    std::condition_variable arrived;
    bool done = false;
    std::optional<stored> value;
    std::exception_ptr failure;

    void finish(std::optional<stored> result, std::exception_ptr why) {
        const std::lock_guard lock(guard);
        value = std::move(result);
        failure = std::move(why);
        done = true;
        arrived.notify_one();
    }
    T wait() {
        std::unique_lock lock(guard);
        arrived.wait(lock, [this] { return done; });
        if (failure) std::rethrow_exception(std::move(failure));
        if constexpr (!std::is_void_v<T>) return std::move(*value);
    }
};

template <class T, class F>
task<void> run_for_other_thread(F* f, std::shared_ptr<handed_over<T>> out) {
    std::optional<typename handed_over<T>::stored> value;
    std::exception_ptr failure;
    try {
        auto work = (*f)();
        if constexpr (std::is_void_v<T>) {
            co_await work;
            value.emplace();
        } else {
            value.emplace(co_await work);
        }
    } catch (...) {
        failure = std::current_exception();
    }
    out->finish(std::move(value), std::move(failure)); // from here on f may be gone
}

} // namespace detail

/// Stops and joins in the destructor; all tasks started through run() have ended by then.
class loop_thread {
public:
    explicit loop_thread(std::string name) : thread_([this, name = std::move(name)] { live(name); }) {}
    loop_thread(const loop_thread&) = delete;
    loop_thread& operator=(const loop_thread&) = delete;
    ~loop_thread() {
        loop_.post_from_any_thread([this] { stop_.set(); });
        thread_.join();
    }

    /// Calls f() on the loop's thread; f returns task<T>, which is run to its end there.
    ///   result  T; an exception of the task is rethrown here
    ///   thread  any except the loop's own; blocks the caller
    template <class F>
    auto run(F f) {
        using result_type = typename std::invoke_result_t<F&>::value_type;
        SKEIN_CHECK(std::this_thread::get_id() != thread_.get_id(),
                    "loop_thread::run on its own thread would wait for itself");
        auto out = std::make_shared<detail::handed_over<result_type>>();
        loop_.post_from_any_thread([this, &f, out] {
            work_->spawn(detail::run_for_other_thread<result_type, F>(&f, out));
        });
        return out->wait();
    }

    [[nodiscard]] real_loop& loop() noexcept { return loop_; }

private:
    void live(const std::string& name) {
        ::pthread_setname_np(::pthread_self(), name.substr(0, 15).c_str());
        // Signals are for the main thread.
        sigset_t all;
        sigfillset(&all);
        for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) sigdelset(&all, fault);
        ::pthread_sigmask(SIG_BLOCK, &all, nullptr);
        scope work;
        work_ = &work;
        loop_.run(wait_for_stop(&work));
        work_ = nullptr;
    }
    task<void> wait_for_stop(scope* work) {
        auto stopped = stop_.wait();
        co_await stopped;
        auto joined = work->join();
        co_await joined;
    }

    real_loop loop_;
    event stop_;
    scope* work_ = nullptr; ///< set before the loop runs; used on its thread
    std::thread thread_;    ///< last: it uses all of the above
};

} // namespace skein::net
