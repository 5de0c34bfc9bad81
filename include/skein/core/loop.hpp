// SPDX-License-Identifier: Apache-2.0
#pragma once
// loop: what one thread runs. A run queue, timers, handles posted from other threads, and a way to
// wait for the outside world.
//
// Two worlds derive from it: net::real_loop (Asio) and sim::loop (virtual time, seeded). Protocol
// code sees only this class and cannot tell which one it is on. A coroutine stays on its loop. One
// turn: run what is ready, run the turn hooks (one flush per connection), wait for I/O or the next
// timer, fire timers, take what other threads posted.

#include <skein/core/cancel.hpp>
#include <skein/core/function.hpp>
#include <skein/core/random.hpp>
#include <skein/core/task.hpp>
#include <skein/core/timer_wheel.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <concepts>
#include <coroutine>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace skein {

namespace detail {

struct self_owned;

/// Of a coroutine that owns itself. It belongs to what its maker belonged to.
struct root_promise : promise_base {
    root_promise() noexcept : owned(current_context) { context = current_context; }
    self_owned get_return_object() noexcept;
    std::suspend_always initial_suspend() const noexcept { return {}; }
    std::suspend_never final_suspend() const noexcept { return {}; }
    void return_void() const noexcept {}
    [[noreturn]] void unhandled_exception() const noexcept { std::terminate(); }
    counted_ptr<task_context> owned;
};

} // namespace detail

/// Work done once at the end of a turn in which it was requested. Unlinks itself when destroyed.
class turn_hook : public list_node<turn_hook> {
public:
    explicit turn_hook(void (*run)(turn_hook&)) noexcept : run_(run) {}

private:
    friend class loop;
    void (*run_)(turn_hook&);
};

/// A coroutine that waits, and the context to resume it under. Lives where the wait does.
struct resumption {
    std::coroutine_handle<> handle;
    task_context* context = nullptr;
};

/// One thread's scheduler. All members but post_from_any_thread belong to the thread that runs it.
class loop {
public:
    loop(const loop&) = delete;
    loop& operator=(const loop&) = delete;
    virtual ~loop() {
        for (const item& i : ready_) {
            if (i.run == &run_call) delete static_cast<unique_function<void()>*>(i.what);
        }
    }

    /// The loop that runs on this thread; a bug if there is none.
    [[nodiscard]] static loop& current() {
        SKEIN_CHECK(current_ != nullptr, "no skein loop runs on this thread");
        return *current_;
    }
    [[nodiscard]] static loop* try_current() noexcept { return current_; }
    /// For what would keep this thread to itself until it ends, with a loop of its own.
    ///   what, hint  as the error has them: "skein::run", "co_await ... instead"
    ///   errors      not_supported: a loop runs on this thread and would stand still
    static void refuse_inside(std::string_view what, std::string_view hint);

    /// Drives this loop on the calling thread until work ends; gives its value or rethrows. Work is
    /// cancelled by the token. Not re-entrant.
    template <class T>
    T run(task<T> work, cancel_token token = {});

    /// Owns work whose owner was destroyed: run() returns only when all of it has ended. It should
    /// have been cancelled. Its errors are nobody's.
    void adopt(task<void> work);

    /// Makes a loop the current one of this thread while it lives, where one thread has several:
    /// for plain calls of what belongs to it. Nothing may be awaited meanwhile.
    class use {
    public:
        explicit use(loop& of) noexcept : before_(std::exchange(current_, &of)) {
            of.now_ = of.exact_now();
        }
        use(const use&) = delete;
        use& operator=(const use&) = delete;
        ~use() { current_ = before_; }

    private:
        loop* before_;
    };

    /// While it lives a function runs on this loop that returns when it likes and awaits nothing:
    /// the turn may last for hours, and what is sent meanwhile does not wait for its end.
    class occupied {
    public:
        explicit occupied(loop& of) noexcept
            : of_(of), before_(std::exchange(of.occupied_, true)) {}
        occupied(const occupied&) = delete;
        occupied& operator=(const occupied&) = delete;
        ~occupied() { of_.occupied_ = before_; }

    private:
        loop& of_;
        bool before_;
    };
    [[nodiscard]] bool is_occupied() const noexcept { return occupied_; }

    /// Queues a suspended coroutine; it is resumed in this turn or the next, under no context.
    void post(std::coroutine_handle<> handle) { ready_.push_back({&run_frame, handle.address()}); }
    /// The same with its context; `to` must stay until then.
    void post(resumption& to) { ready_.push_back({&run_resumption, &to}); }
    /// Queues a new coroutine that owns itself, under the context that its promise holds.
    void post_root(std::coroutine_handle<detail::root_promise> root) {
        ready_.push_back({&run_root_frame, root.address()});
    }
    /// Queues a call. It must not throw: nobody is there to catch it, the program ends.
    template <class F>
        requires(std::invocable<F&> && !std::convertible_to<F, std::coroutine_handle<>>)
    void post(F call) {
        ready_.push_back({&run_call, new unique_function<void()>(std::move(call))});
    }
    /// Queues a call from any thread and wakes the loop, once for all that come before it has. The
    /// only thread-safe member. The call must not throw.
    void post_from_any_thread(unique_function<void()> call) {
        // All under the lock: once the loop has taken the call it may end and be destroyed.
        const std::lock_guard lock(remote_mutex_);
        remote_.push_back(std::move(call));
        // Who found nothing has woken the loop, or has kept it from waiting.
        const bool is_first = !has_remote_.exchange(true, std::memory_order_seq_cst);
        if (is_first && blocked_.load(std::memory_order_seq_cst)) notify();
    }

    /// The time of this turn.
    [[nodiscard]] time_point now() const noexcept { return now_; }
    /// The time now: what a length "from now on" counts from, however long this turn has taken
    /// already.
    [[nodiscard]] time_point exact_now() noexcept { return std::max(now_, read_clock()); }
    /// The time now, not that of this turn, to a few milliseconds: cheap enough to ask after each
    /// piece of work that may have been long.
    [[nodiscard]] virtual time_point coarse_now() noexcept { return read_clock(); }

    /// Since 1970-01-01 UTC, as people's clocks say. It may jump: nothing is decided by it.
    [[nodiscard]] virtual std::chrono::milliseconds wall();

    /// Where randomness of this world comes from: the kernel's here, a seeded one under simulation.
    [[nodiscard]] virtual random_source& random() noexcept { return system_random(); }
    /// How long work on another thread is to seem to take; nothing in worlds that have threads.
    [[nodiscard]] virtual std::optional<duration> simulated_work_time() { return std::nullopt; }

    /// Sets a timer of this loop (again).
    void set_timer(timer_node& timer, time_point when) noexcept { timers_.set(timer, when); }

    /// Runs the hook once when the ready work of this turn is done, before the loop waits.
    void at_turn_end(turn_hook& hook) noexcept {
        if (!hook.is_linked()) hooks_.push_back(hook);
    }

    /// Runs a coroutine and what it hands over to until all are suspended. For completion handlers
    /// of a world, called on the loop's thread, never from inside a coroutine.
    static void resume(std::coroutine_handle<> handle) {
        // After this many hand-overs others get their turn.
        constexpr int budget = 4096;
        int left = budget;
        while (handle) {
            if (--left == 0 && current_ != nullptr) {
                current_->post([handle, context = counted_ptr(detail::current_context)] {
                    detail::current_context = context.get();
                    resume(handle);
                });
                return;
            }
            detail::next_to_run = {};
            handle.resume();
            handle = std::exchange(detail::next_to_run, {});
        }
    }

protected:
    explicit loop(time_point start = {}) : now_(start), timers_(start) {}

    /// The world's clock now.
    virtual time_point read_clock() noexcept = 0;
    /// Handles what is ready outside. With may_block it waits for something to be ready, for
    /// notify(), or until the time given (nothing: no timer is set); without, it returns at once.
    /// Called with no lock held; notify() is called under the lock of the posted calls and must not
    /// post.
    virtual void poll(std::optional<time_point> until, bool may_block) = 0;
    /// Thread-safe: makes a poll that waits return, or the next one not wait.
    virtual void notify() noexcept = 0;

    /// One turn. For worlds that drive themselves.
    void turn(bool may_block) {
        run_ready();
        run_hooks();
        // A hook may have asked for another one: it does not wait for what may never come.
        const bool idle = ready_.empty() && hooks_.empty() && may_block && !is_over();
        if (idle) blocked_.store(true, std::memory_order_seq_cst);
        const bool remote = has_remote_.load(std::memory_order_seq_cst);
        const bool wait = idle && !remote;
        poll(wait ? timers_.next() : std::nullopt, wait);
        if (idle) blocked_.store(false, std::memory_order_relaxed);
        now_ = std::max(now_, read_clock());
        timers_.advance(now_);
        if (has_remote_.load(std::memory_order_acquire)) take_remote();
    }

    /// For a loop that another one drives, from within its poll(): that one's run() waits for what
    /// is adopted here.
    void live_within(loop& outer) noexcept { outer_ = &outer; }
    /// Whether a turn would do something now.
    [[nodiscard]] bool has_work() noexcept {
        if (!ready_.empty() || !hooks_.empty() || has_remote_.load(std::memory_order_acquire))
            return true;
        const auto next = timers_.next();
        return next && *next <= exact_now();
    }
    /// When this loop's timers want to be looked at again.
    [[nodiscard]] std::optional<time_point> next_timer() noexcept { return timers_.next(); }

private:
    struct item {
        void (*run)(void*);
        void* what;
    };

    [[nodiscard]] bool is_over() const noexcept { return finished_ && adopted_ == 0; }
    static void run_frame(void* p) {
        detail::current_context = nullptr;
        resume(std::coroutine_handle<>::from_address(p));
    }
    static void run_resumption(void* p) {
        const resumption to = *static_cast<resumption*>(p); // it ends with the wait
        detail::current_context = to.context;
        resume(to.handle);
    }
    static void run_root_frame(void* p) {
        const auto root = std::coroutine_handle<detail::root_promise>::from_address(p);
        detail::current_context = root.promise().context;
        resume(root);
    }
    static void run_call(void* p) noexcept {
        const std::unique_ptr<unique_function<void()>> owned(
            static_cast<unique_function<void()>*>(p));
        detail::current_context = nullptr;
        (*owned)();
    }
    void run_ready() {
        // Work that posts itself for ever must not keep the world out.
        for (int round = 0; round < 16 && !ready_.empty(); ++round) {
            running_.swap(ready_);
            for (const item& i : running_) i.run(i.what);
            running_.clear();
        }
        detail::current_context = nullptr; // of what comes from outside
    }
    void run_hooks() {
        intrusive_list<turn_hook, turn_hook> due;
        due.splice_back(hooks_);
        while (!due.empty()) {
            auto& hook = due.pop_front();
            hook.run_(hook);
        }
    }
    void take_remote() noexcept {
        std::vector<unique_function<void()>> taken;
        {
            const std::lock_guard lock(remote_mutex_);
            taken.swap(remote_);
            has_remote_.store(false, std::memory_order_relaxed);
        }
        for (auto& call : taken) call();
    }

    static inline constinit thread_local loop* current_ = nullptr;

    bool occupied_ = false;   ///< by a function that awaits nothing
    bool finished_ = false;   ///< the task of run() has ended
    std::size_t adopted_ = 0; ///< works of adopt() that have not
    loop* outer_ = this;      ///< which counts them
    time_point now_;
    timer_wheel timers_;
    std::vector<item> ready_, running_;
    intrusive_list<turn_hook, turn_hook> hooks_;

    std::mutex remote_mutex_;
    std::vector<unique_function<void()>> remote_;
    std::atomic<bool> has_remote_{false};
    std::atomic<bool> blocked_{false};
};

namespace detail {

/// A coroutine that owns itself: starts when told, destroys itself at its end. Only scope and loop
/// make them; nothing else may run without an owner.
struct self_owned {
    using promise_type = root_promise;
    std::coroutine_handle<root_promise> frame;
};

inline self_owned root_promise::get_return_object() noexcept {
    return {std::coroutine_handle<root_promise>::from_promise(*this)};
}

template <class T>
self_owned run_root(task<T> work, task_promise<T>* out, bool* done) {
    try {
        if constexpr (std::is_void_v<T>) {
            co_await work;
        } else {
            out->return_value(co_await work);
        }
    } catch (...) {
        out->unhandled_exception();
    }
    work = {};
    *done = true;
}

} // namespace detail

template <class T>
T loop::run(task<T> work, cancel_token token) {
    refuse_inside("loop::run", "co_await the task instead, or run it on a thread of its own");
    const use this_one(*this);
    detail::task_promise<T> outcome;
    finished_ = false;
    auto guarded = with_cancel(std::move(token), std::move(work));
    auto root = detail::run_root<T>(std::move(guarded), &outcome, &finished_);
    post_root(root.frame);
    while (!is_over()) turn(true);
    return outcome.take();
}

} // namespace skein

#if SKEIN_HEADER_ONLY
#include <skein/core/detail/loop.ipp>
#endif
