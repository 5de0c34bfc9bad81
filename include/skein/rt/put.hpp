// SPDX-License-Identifier: Apache-2.0
#pragma once
// put(value): a value for many calls, stored once on its node.
//
//     std::vector<float> weights = load();
//     auto r = co_await skein::put(weights);               // ref<std::vector<float>>
//     for (int i = 0; i < 100; ++i) all.push_back(skein::remote<&score>(r, i));
//
// A value above 64 KiB becomes an object in the store of the node, which all processes there read in
// place; a smaller one stays in the ref. Where there is no store, or no room in it within 10 s, the
// value stays in the memory of this process, and calls send it.

#include <skein/core/constants.hpp>
#include <skein/core/task.hpp>
#include <skein/rt/detail/object_traffic.hpp>
#include <skein/rt/detail/replies.hpp>
#include <skein/rt/detail/stored.hpp>
#include <skein/rt/ref.hpp>
#include <skein/rt/runtime.hpp>
#include <skein/wire/encode.hpp>

#include <memory>
#include <type_traits>
#include <utility>

namespace skein {

namespace rt::detail {

/// The object of a value; null: it is small, or there is no room.
template <class T>
[[nodiscard]] task<objects::object_ptr> make_object(runtime* by, const T* value) {
    auto& objects = by->answers().objects();
    if constexpr (is_flat<T>) {
        const auto bytes = flat_bytes(*value);
        if (!objects.takes(bytes.size())) co_return nullptr;
        auto making = objects.make(bytes);
        co_return co_await making;
    } else {
        if (!objects.has_store()) co_return nullptr;
        const auto bytes = wire::encode(*value);
        if (!objects.takes(bytes.size())) co_return nullptr;
        auto making = objects.make(bytes);
        co_return co_await making;
    }
}

template <class T>
[[nodiscard]] task<ref<T>> put_borrowed(runtime* by, const T* value) {
    auto making = make_object<T>(by, value);
    auto object = co_await making;
    if (object) co_return ref<T>(ref_state<T>::of_object(object));
    co_return ref<T>(ref_state<T>::of_value(T(*value)));
}

template <class T>
[[nodiscard]] task<ref<T>> put_owned(runtime* by, T value) {
    auto making = make_object<T>(by, &value);
    auto object = co_await making;
    if (object) co_return ref<T>(ref_state<T>::of_object(object));
    co_return ref<T>(ref_state<T>::of_value(std::move(value)));
}

template <class T>
consteval bool check_put() {
    static_assert(
        storable<T>,
        "skein: put() takes a value that can be sent and owns what it holds: no view, ref, "
        "actor_handle or placement_group is in it");
    return storable<T>;
}

} // namespace rt::detail

/// Stores a value for this program. Suspends until it is there; waits while the store is full.
///   value   must stay until the task has ended; it is copied into the store, and not kept
///   errors  too_large (it cannot be encoded), cancelled
template <class T>
[[nodiscard]] task<ref<T>> put(const T& value) {
    if constexpr (rt::detail::check_put<T>())
        return rt::detail::put_borrowed<T>(&rt::runtime::current(), &value);
}
/// The same for a value that nobody else needs.
template <class T>
    requires(!std::is_reference_v<T> && !std::is_const_v<T>)
[[nodiscard]] task<ref<T>> put(T&& value) {
    if constexpr (rt::detail::check_put<T>())
        return rt::detail::put_owned<T>(&rt::runtime::current(), std::move(value));
}

} // namespace skein
