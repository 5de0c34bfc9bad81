// SPDX-License-Identifier: Apache-2.0
#pragma once
// all: run several tasks at once and wait for all of them.
//
//     auto both = all(load(1), load(2));
//     auto [a, b] = co_await std::move(both);

#include <skein/core/awaitable.hpp>
#include <skein/core/scope.hpp>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace skein {
namespace detail {

/// void has no values: all() gives std::monostate for it.
template <class T>
using value_or_monostate = std::conditional_t<std::is_void_v<T>, std::monostate, T>;

template <class T>
task<void> keep_value(task<T> work, std::optional<value_or_monostate<T>>* out) {
    if constexpr (std::is_void_v<T>) {
        co_await work;
        out->emplace();
    } else {
        out->emplace(co_await work);
    }
}

} // namespace detail

/// Runs all tasks concurrently; gives their values in order (std::monostate for void). The first
/// error cancels the others, and is rethrown when all have ended. Resumed by the loop.
template <class... Ts>
    requires(sizeof...(Ts) > 0)
[[nodiscard]] task<std::tuple<detail::value_or_monostate<Ts>...>> all(task<Ts>... work) {
    std::tuple<std::optional<detail::value_or_monostate<Ts>>...> slots;
    scope children;
    [&]<std::size_t... I>(std::index_sequence<I...>) {
        (children.spawn(detail::keep_value<Ts>(std::move(work), &std::get<I>(slots))), ...);
    }(std::index_sequence_for<Ts...>{});
    auto joined = children.join();
    try {
        co_await joined;
    } catch (const error&) { // cancelled, but values that are all there are delivered
        if (!std::apply([](const auto&... slot) { return (slot.has_value() && ...); }, slots))
            throw;
    }
    co_return std::apply(
        [](auto&... slot) {
            return std::tuple<detail::value_or_monostate<Ts>...>(std::move(*slot)...);
        },
        slots);
}

/// The same for things that as_task turns into tasks (refs).
template <task_like... As>
    requires(sizeof...(As) > 0 &&
             !(requires { typename std::remove_cvref_t<As>::promise_type; } && ...))
[[nodiscard]] auto all(As&&... work) {
    return all(as_task(std::forward<As>(work))...);
}

/// The same for any number of one type; void gives a task<void>.
template <class T>
[[nodiscard]] auto all(std::vector<task<T>> work) -> task<
    std::conditional_t<std::is_void_v<T>, void, std::vector<detail::value_or_monostate<T>>>> {
    std::vector<std::optional<detail::value_or_monostate<T>>> slots(work.size());
    scope children;
    for (std::size_t i = 0; i < work.size(); ++i) {
        children.spawn(detail::keep_value<T>(std::move(work[i]), &slots[i]));
    }
    auto joined = children.join();
    try {
        co_await joined;
    } catch (const error&) {
        if (!std::all_of(slots.begin(), slots.end(), [](const auto& s) { return s.has_value(); }))
            throw;
    }
    if constexpr (!std::is_void_v<T>) {
        std::vector<T> values;
        values.reserve(slots.size());
        for (auto& slot : slots) values.push_back(std::move(*slot));
        co_return values;
    }
}

/// The same for a vector of refs.
template <task_like A>
    requires(!requires { typename A::promise_type; })
[[nodiscard]] auto all(std::vector<A> work) {
    std::vector<decltype(as_task(std::declval<A>()))> tasks;
    tasks.reserve(work.size());
    for (auto& w : work) tasks.push_back(as_task(std::move(w)));
    return all(std::move(tasks));
}

} // namespace skein
