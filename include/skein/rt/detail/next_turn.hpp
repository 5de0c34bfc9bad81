// SPDX-License-Identifier: Apache-2.0
#pragma once
// next_turn: what has to let the loop send and read before it goes on.

#include <skein/core/loop.hpp>
#include <skein/core/task.hpp>

#include <coroutine>

namespace skein::rt::detail {

/// Resumes in the next turn of the loop, when replies have left and what has come was read. Behind
/// a yield() also those run first whom this has woken. Name it, then await it.
struct next_turn : turn_hook {
    next_turn() noexcept
        : turn_hook(
              [](turn_hook& h) { loop::current().post(static_cast<next_turn&>(h).waiting); }) {}
    static bool await_ready() noexcept { return false; }
    template <skein::detail::promise_with_context Promise>
    void await_suspend(std::coroutine_handle<Promise> h) noexcept {
        waiting = {h, h.promise().context};
        loop::current().at_turn_end(*this);
    }
    static void await_resume() noexcept {}
    resumption waiting;
};

} // namespace skein::rt::detail
