// SPDX-License-Identifier: Apache-2.0
#pragma once
// Waiting for time, in the time of the loop: virtual under simulation.
//
//     co_await sleep_for(10ms);

#include <skein/core/wait.hpp>

namespace skein {

/// What sleep_for and sleep_until return. Suspends until the time; resumed by the loop; throws
/// cancelled at once when the task is cancelled.
class sleep_awaiter : public waiter, private timer_node {
public:
    sleep_awaiter(bool relative, duration length, time_point until) noexcept
        : timer_node([](timer_node& t) { static_cast<sleep_awaiter&>(t).wake(); }),
          relative_(relative), length_(length), until_(until) {}

    bool await_ready() const noexcept { return false; }
    template <detail::promise_with_context Promise>
    bool await_suspend(std::coroutine_handle<Promise> h) {
        if (!arm(h)) return false;
        auto& here = loop::current();
        here.set_timer(*this, relative_ ? deadline_after(here.exact_now(), length_) : until_);
        return true;
    }
    void await_resume() {
        timer_node::cancel();
        throw_if_cancelled();
    }

private:
    bool relative_;
    duration length_;
    time_point until_;
};

/// Suspends for at least the given time.
[[nodiscard]] inline sleep_awaiter sleep_for(time_span length) noexcept {
    return {true, length, {}};
}
/// Suspends until the loop's time is at least `until`.
[[nodiscard]] inline sleep_awaiter sleep_until(time_point until) noexcept {
    return {false, {}, until};
}

/// What yield returns.
class yield_awaiter : public waiter {
public:
    bool await_ready() const noexcept { return false; }
    template <detail::promise_with_context Promise>
    bool await_suspend(std::coroutine_handle<Promise> h) {
        if (!arm(h)) return false;
        wake();
        return true;
    }
    void await_resume() const { throw_if_cancelled(); }
};

/// Lets everything else that is ready run first. A cancellation point.
[[nodiscard]] inline yield_awaiter yield() noexcept { return {}; }

} // namespace skein
