// SPDX-License-Identifier: Apache-2.0
#pragma once
// any: run several tasks at once and take the first that succeeds.
//
// Errors are only the answer when all have failed; then the first one is rethrown.

#include <skein/core/race.hpp>

#include <utility>
#include <vector>

namespace skein {

/// Gives the first task that ends without an error; the others are cancelled and waited for.
template <class T>
[[nodiscard]] task<finished<T>> any(std::vector<task<T>> work) {
    return detail::hold_race<T>(std::move(work), false);
}
template <class T, class... Rest>
    requires(std::same_as<T, Rest> && ...)
[[nodiscard]] task<finished<T>> any(task<T> first, task<Rest>... rest) {
    return any(detail::to_vector(std::move(first), std::move(rest)...));
}
/// The same for refs.
template <task_like A, task_like... As>
    requires(
        !requires { typename std::remove_cvref_t<A>::promise_type; } &&
        !requires { typename std::remove_cvref_t<A>::allocator_type; })
[[nodiscard]] auto any(A&& first, As&&... rest) {
    return any(as_task(std::forward<A>(first)), as_task(std::forward<As>(rest))...);
}

} // namespace skein
