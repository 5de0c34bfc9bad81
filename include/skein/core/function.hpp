// SPDX-License-Identifier: Apache-2.0
#pragma once
// unique_function: std::function for callables that can only be moved.
//
// Small callables (up to 48 bytes, nothrow-movable) live inside; others on the heap. Calling an
// empty one is a bug and is checked.

#include <skein/core/check.hpp>

#include <cstddef>
#include <functional>
#include <new>
#include <type_traits>
#include <utility>

namespace skein {

/// Defined for signatures `R(Args...)` only.
template <class Signature>
class unique_function;

/// A callable owned by value. Move-only; empty after being moved from.
template <class R, class... Args>
class unique_function<R(Args...)> {
public:
    unique_function() noexcept = default;
    unique_function(std::nullptr_t) noexcept {}

    template <class F>
        requires(!std::is_same_v<std::remove_cvref_t<F>, unique_function> &&
                 std::is_invocable_r_v<R, std::remove_cvref_t<F>&, Args...>)
    unique_function(F&& f) {
        using callable = std::remove_cvref_t<F>;
        if constexpr (fits<callable>) {
            ::new (static_cast<void*>(storage_)) callable(std::forward<F>(f));
            ops_ = &inside<callable>;
        } else {
            ::new (static_cast<void*>(storage_)) callable*(new callable(std::forward<F>(f)));
            ops_ = &outside<callable>;
        }
    }

    unique_function(unique_function&& other) noexcept { take(other); }
    unique_function& operator=(unique_function&& other) noexcept {
        if (this != &other) {
            reset();
            take(other);
        }
        return *this;
    }
    ~unique_function() { reset(); }

    explicit operator bool() const noexcept { return ops_ != nullptr; }

    R operator()(Args... args) {
        SKEIN_CHECK(ops_ != nullptr, "an empty unique_function was called");
        return ops_->call(storage_, std::forward<Args>(args)...);
    }

private:
    struct operations {
        R (*call)(void*, Args&&...);
        void (*move)(void* from, void* to) noexcept;
        void (*destroy)(void*) noexcept;
    };
    static constexpr std::size_t capacity = 48;
    template <class F>
    static constexpr bool fits = sizeof(F) <= capacity && alignof(F) <= alignof(std::max_align_t) &&
                                 std::is_nothrow_move_constructible_v<F>;

    template <class F>
    static R invoke(F& f, Args&&... args) {
        if constexpr (std::is_void_v<R>) {
            std::invoke(f, std::forward<Args>(args)...);
        } else {
            return std::invoke(f, std::forward<Args>(args)...);
        }
    }
    template <class F>
    static constexpr operations inside{[](void* p, Args&&... args) -> R {
                                           return invoke(*static_cast<F*>(p),
                                                         std::forward<Args>(args)...);
                                       },
                                       [](void* from, void* to) noexcept {
                                           ::new (to) F(std::move(*static_cast<F*>(from)));
                                           static_cast<F*>(from)->~F();
                                       },
                                       [](void* p) noexcept { static_cast<F*>(p)->~F(); }};
    template <class F>
    static constexpr operations outside{
        [](void* p, Args&&... args) -> R {
            return invoke(**static_cast<F**>(p), std::forward<Args>(args)...);
        },
        [](void* from, void* to) noexcept { ::new (to) F*(*static_cast<F**>(from)); },
        [](void* p) noexcept { delete *static_cast<F**>(p); }};

    void take(unique_function& other) noexcept {
        if (other.ops_ == nullptr) return;
        other.ops_->move(other.storage_, storage_);
        ops_ = std::exchange(other.ops_, nullptr);
    }
    void reset() noexcept {
        if (ops_ != nullptr) std::exchange(ops_, nullptr)->destroy(storage_);
    }

    const operations* ops_ = nullptr;
    alignas(std::max_align_t) std::byte storage_[capacity];
};

} // namespace skein
