// SPDX-License-Identifier: Apache-2.0
#pragma once
// race: run several tasks at once and take the first that ends, well or badly.
//
//     auto first = race(primary(), backup());      // finished<T>{index, value}

#include <skein/core/all.hpp>

#include <cstddef>
#include <exception>
#include <optional>
#include <utility>
#include <vector>

namespace skein {

/// Which task it was, and its value (std::monostate for void).
template <class T>
struct finished {
    std::size_t index = 0;
    detail::value_or_monostate<T> value;
};

namespace detail {

template <class T>
struct race_state {
    std::optional<finished<T>> winner;
    std::exception_ptr failure;
    bool over = false;
    scope children;
};

/// One runner. error_ends: an error ends the race (race), else only this runner (any).
template <class T>
task<void> run_in_race(task<T> work, std::size_t index, race_state<T>* race, bool error_ends) {
    std::exception_ptr failure;
    std::optional<value_or_monostate<T>> value;
    try {
        auto kept = keep_value<T>(std::move(work), &value);
        co_await kept;
    } catch (...) {
        failure = std::current_exception();
    }
    if (race->over) co_return;
    if (failure) {
        if (!race->failure) race->failure = failure;
        if (!error_ends) co_return;
    } else {
        race->winner.emplace(finished<T>{index, std::move(*value)});
    }
    race->over = true;
    race->children.cancel();
}

template <class T>
task<finished<T>> hold_race(std::vector<task<T>> work, bool error_ends) {
    if (work.empty()) throw error(errc::invalid_argument, "a race of no tasks");
    race_state<T> race;
    for (std::size_t i = 0; i < work.size(); ++i) {
        race.children.spawn(run_in_race<T>(std::move(work[i]), i, &race, error_ends));
    }
    auto joined = race.children.join();
    try {
        co_await joined;
    } catch (const error&) { // cancelled, but a value that is there is delivered
        if (!race.winner) throw;
    }
    if (race.winner) co_return std::move(*race.winner);
    std::rethrow_exception(race.failure);
}

template <class T, class... Rest>
std::vector<task<T>> to_vector(task<T> first, task<Rest>... rest) {
    std::vector<task<T>> tasks;
    tasks.reserve(1 + sizeof...(rest));
    tasks.push_back(std::move(first));
    (tasks.push_back(std::move(rest)), ...);
    return tasks;
}

} // namespace detail

/// Gives the first task that ends; its error is rethrown. The others are cancelled and waited for.
template <class T>
[[nodiscard]] task<finished<T>> race(std::vector<task<T>> work) {
    return detail::hold_race<T>(std::move(work), true);
}
template <class T, class... Rest>
    requires(std::same_as<T, Rest> && ...)
[[nodiscard]] task<finished<T>> race(task<T> first, task<Rest>... rest) {
    return race(detail::to_vector(std::move(first), std::move(rest)...));
}
/// The same for refs.
template <task_like A, task_like... As>
    requires(
        !requires { typename std::remove_cvref_t<A>::promise_type; } &&
        !requires { typename std::remove_cvref_t<A>::allocator_type; })
[[nodiscard]] auto race(A&& first, As&&... rest) {
    return race(as_task(std::forward<A>(first)), as_task(std::forward<As>(rest))...);
}

} // namespace skein
