// SPDX-License-Identifier: Apache-2.0
#pragma once
// A limit on how long a task may take, in the loop's time.
//
//     auto answer = with_timeout(client.ask(question), 2s);
//     auto text = co_await std::move(answer);            // or throws errc::timeout

#include <skein/core/cancel.hpp>
#include <skein/core/loop.hpp>

#include <utility>

#include <fmt/core.h>

namespace skein {

/// Runs work; at `until` cancels it, waits for its end, and throws errc::timeout. A value that is
/// there in time, or that the work still gives after being cancelled, is delivered.
template <class T>
[[nodiscard]] task<T> with_deadline(task<T> work, time_point until) {
    auto* outer = co_await detail::current_cancel{};
    struct limit : timer_node {
        explicit limit(detail::cancel_state* parent)
            : timer_node([](timer_node& t) {
                  auto& self = static_cast<limit&>(t);
                  self.passed = true;
                  self.cancel_work.request();
              }),
              cancel_work(parent) {}
        bool passed = false;
        detail::cancel_state cancel_work;
    } timer(outer);
    const auto begin = loop::current().exact_now();
    loop::current().set_timer(timer, until);
    detail::await_under<T> inner(std::move(work), &timer.cancel_work);
    try {
        co_return co_await inner;
    } catch (const error& e) {
        const bool ours = e.code() == errc::cancelled && timer.passed;
        if (!ours || (outer != nullptr && outer->requested())) throw;
        throw error(errc::timeout,
                    fmt::format("no answer within {:.3g} s", to_seconds(between(begin, until))));
    }
}

/// The same with a length from now on.
template <class T>
[[nodiscard]] task<T> with_timeout(task<T> work, time_span limit) {
    auto timed = with_deadline(std::move(work), deadline_after(loop::current().exact_now(), limit));
    co_return co_await timed;
}

} // namespace skein
