// SPDX-License-Identifier: Apache-2.0
#pragma once
// counted_ptr<T>: a pointer to something that counts its users itself, and ends with the last one.
//
// T has add_use() and drop_use(). The count is not atomic: everything that shares it belongs to one
// loop.

#include <skein/core/config.hpp>

#include <concepts>
#include <utility>

namespace skein {

/// A use of a T, or none. One pointer wide.
template <class T>
class counted_ptr {
public:
    counted_ptr() noexcept = default;
    explicit counted_ptr(T* p) noexcept : p_(p) {
        if (p_ != nullptr) p_->add_use();
    }
    counted_ptr(const counted_ptr& other) noexcept : counted_ptr(other.p_) {}
    counted_ptr(counted_ptr&& other) noexcept : p_(std::exchange(other.p_, nullptr)) {}
    template <class U>
        requires std::derived_from<U, T>
    counted_ptr(const counted_ptr<U>& other) noexcept : counted_ptr(other.get()) {}
    counted_ptr& operator=(counted_ptr other) noexcept {
        std::swap(p_, other.p_);
        return *this;
    }
    ~counted_ptr() {
        if (p_ != nullptr) p_->drop_use();
    }

    [[nodiscard]] T* get() const noexcept { return p_; }
    T* operator->() const noexcept { return p_; }
    T& operator*() const noexcept { return *p_; }
    explicit operator bool() const noexcept { return p_ != nullptr; }
    friend bool operator==(const counted_ptr&, const counted_ptr&) = default;

private:
    T* p_ = nullptr;
};

} // namespace skein
