// SPDX-License-Identifier: Apache-2.0
#pragma once
// The leaf of every wait: a waiter is one suspended coroutine; a wait_queue is a line of them.
//
// A waiter ends exactly once, by wake() or by cancellation, and its coroutine is then resumed
// through the run queue of the loop it waits on. This is the tool that event, mutex, channel and
// the protocols are made of; programs rarely need it.

#include <skein/core/cancel.hpp>
#include <skein/core/loop.hpp>

#include <coroutine>
#include <cstdint>

namespace skein {

/// One suspended coroutine. Lives in the awaiter, so in the coroutine's frame.
class waiter : public list_node<waiter>, private detail::cancel_hook {
public:
    waiter() noexcept
        : cancel_hook([](cancel_hook& h) noexcept { static_cast<waiter&>(h).cancel_requested(); }) {
    }
    virtual ~waiter() = default;

    /// To be called in await_suspend. False: the task is cancelled already, do not suspend.
    template <detail::promise_with_context Promise>
    [[nodiscard]] bool arm(std::coroutine_handle<Promise> h, bool cancellable = true) {
        next_ = {h, h.promise().context};
        loop_ = &loop::current();
        detail::cancel_state* cancel = cancellable ? h.promise().cancel : nullptr;
        if (cancel != nullptr && cancel->requested()) {
            state_ = state::cancelled;
            return false;
        }
        state_ = state::waiting;
        if (cancel != nullptr) cancel->add(*this);
        return true;
    }
    [[nodiscard]] bool is_waiting() const noexcept { return state_ == state::waiting; }

    /// Ends the wait well; the coroutine is resumed by the loop. Ignored if it has ended.
    void wake() noexcept { end(state::woken); }

    /// To be called in await_resume.
    void throw_if_cancelled() const {
        if (state_ == state::cancelled) throw cancelled_error();
    }

protected:
    /// Called when the task is cancelled while it waits. A leaf whose operation ends later (an Asio
    /// operation) overrides it, starts the end, and calls end_cancelled() or wake() when it is
    /// there.
    virtual void cancel_requested() noexcept { end_cancelled(); }
    void end_cancelled() noexcept { end(state::cancelled); }

private:
    enum class state : std::uint8_t { idle, waiting, woken, cancelled };

    void end(state how) noexcept {
        if (state_ != state::waiting) return;
        state_ = how;
        list_node<waiter>::unlink();
        list_node<cancel_hook>::unlink();
        loop_->post(next_);
    }

    resumption next_;
    loop* loop_ = nullptr;
    state state_ = state::idle;

public:
    using list_node<waiter>::is_linked;
    using list_node<waiter>::unlink;
};

/// Coroutines that wait for the same thing, first come first woken. One loop.
class wait_queue {
public:
    class awaiter : public waiter {
    public:
        awaiter(wait_queue& queue, bool cancellable) noexcept
            : queue_(queue), cancellable_(cancellable) {}
        bool await_ready() const noexcept { return false; }
        template <detail::promise_with_context Promise>
        bool await_suspend(std::coroutine_handle<Promise> h) {
            if (!arm(h, cancellable_)) return false;
            queue_.waiters_.push_back(*this);
            return true;
        }
        void await_resume() const { throw_if_cancelled(); }

    private:
        wait_queue& queue_;
        bool cancellable_;
    };

    /// Suspends until woken; throws cancelled.
    [[nodiscard]] awaiter wait() noexcept { return awaiter(*this, true); }
    /// Suspends until woken, whatever happens to the task: for joins, which have to end.
    [[nodiscard]] awaiter wait_uncancellable() noexcept { return awaiter(*this, false); }

    [[nodiscard]] bool empty() const noexcept {
        return const_cast<wait_queue*>(this)->waiters_.empty();
    }
    /// Wakes the first; false if nobody waits.
    bool wake_one() noexcept {
        if (waiters_.empty()) return false;
        waiters_.front().wake();
        return true;
    }
    void wake_all() noexcept {
        while (wake_one()) {}
    }
    /// The line itself, for primitives whose waiters carry more (semaphore, channel).
    [[nodiscard]] intrusive_list<waiter, waiter>& waiters() noexcept { return waiters_; }

private:
    intrusive_list<waiter, waiter> waiters_;
};

} // namespace skein
