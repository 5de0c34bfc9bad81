// SPDX-License-Identifier: Apache-2.0
#pragma once
// What all, any, race and as_completed accept: tasks, and whatever an overload of as_task turns
// into one (a remote ref has such an overload beside it).

#include <skein/core/result.hpp>
#include <skein/core/task.hpp>

#include <exception>
#include <type_traits>
#include <utility>

namespace skein {

/// A task is already one.
template <class T>
[[nodiscard]] task<T> as_task(task<T> work) noexcept {
    return work;
}

/// Anything that as_task turns into a task.
template <class A>
concept task_like = requires(A&& a) { as_task(std::forward<A>(a)); };

/// What awaiting an A gives.
template <task_like A>
using awaited_t = typename decltype(as_task(std::declval<A>()))::value_type;

/// Runs work and gives its outcome as a value: never throws, but for cancellation of the awaiting
/// task it gives errc::cancelled like any other error.
template <class T>
[[nodiscard]] task<result<T>> as_result(task<T> work) {
    try {
        if constexpr (std::is_void_v<T>) {
            co_await work;
            co_return result<void>{};
        } else {
            co_return result<T>(co_await work);
        }
    } catch (...) {
        co_return to_error(std::current_exception());
    }
}

} // namespace skein
