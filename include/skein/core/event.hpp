// SPDX-License-Identifier: Apache-2.0
#pragma once
// event: a flag one can wait for. Manual reset; one loop.

#include <skein/core/timeout.hpp>
#include <skein/core/wait.hpp>

namespace skein {

/// A flag that tasks of one loop wait for; set until reset(). Neither copyable nor movable.
class event {
public:
    /// Wakes all who wait, and lets later waits pass until reset().
    void set() noexcept {
        set_ = true;
        waiting_.wake_all();
    }
    void reset() noexcept { set_ = false; }
    [[nodiscard]] bool is_set() const noexcept { return set_; }

    class awaiter : public wait_queue::awaiter {
    public:
        explicit awaiter(event& e) noexcept : wait_queue::awaiter(e.waiting_, true), event_(e) {}
        bool await_ready() const noexcept { return event_.set_; }

    private:
        event& event_;
    };
    /// Suspends until set; resumed by the loop. Throws cancelled; the event is not changed by that.
    [[nodiscard]] awaiter wait() noexcept { return awaiter(*this); }
    /// The same, for so long: whether it was set. The event must outlive the task.
    [[nodiscard]] task<bool> wait_for(time_span limit) {
        return wait_until(this, deadline_after(loop::current().exact_now(), limit));
    }
    [[nodiscard]] task<bool> wait_until(time_point end) { return wait_until(this, end); }

private:
    static task<void> wait_set(event* self) { co_await self->wait(); }
    static task<bool> wait_until(event* self, time_point end) {
        try {
            auto waiting = with_deadline(wait_set(self), end);
            co_await waiting;
        } catch (const error& fault) {
            if (fault.code() != errc::timeout) throw;
        }
        co_return self->set_;
    }

    bool set_ = false;
    wait_queue waiting_;
};

} // namespace skein
