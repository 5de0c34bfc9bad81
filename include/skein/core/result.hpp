// SPDX-License-Identifier: Apache-2.0
#pragma once
// A value or a skein::error: what decoders of outside bytes return, and what as_result() gives.
//
//     result<frame> f = decode(bytes);
//     if (!f) return f.error();
//     use(*f);

#include <skein/core/error.hpp>

#include <concepts>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

namespace skein {

/// Either a T or an error. value() throws the error; operator* must not be used on an error.
template <class T>
class [[nodiscard]] result {
public:
    using value_type = T;

    template <class U = T>
        requires(std::constructible_from<T, U> && !std::same_as<std::remove_cvref_t<U>, result> &&
                 !std::same_as<std::remove_cvref_t<U>, skein::error>)
    result(U&& value) : value_(std::forward<U>(value)), has_value_(true) {}
    result(skein::error e) noexcept : error_(std::move(e)), has_value_(false) {}
    result(const result& other)
        requires(std::copy_constructible<T>)
        : has_value_(other.has_value_) {
        has_value_ ? void(std::construct_at(std::addressof(value_), other.value_))
                   : void(std::construct_at(&error_, other.error_));
    }
    result(result&& other) noexcept(std::is_nothrow_move_constructible_v<T>)
        requires(std::move_constructible<T>)
        : has_value_(other.has_value_) {
        move_from(other);
    }
    /// A move of T that throws ends the program.
    result& operator=(result other) noexcept {
        end();
        has_value_ = other.has_value_;
        move_from(other);
        return *this;
    }
    ~result() { end(); }

    [[nodiscard]] bool has_value() const noexcept { return has_value_; }
    explicit operator bool() const noexcept { return has_value_; }

    T& value() & { return check(), value_; }
    const T& value() const& { return check(), value_; }
    /// By value, so that `for (auto& x : f().value())` does not walk a dead temporary.
    T value() && { return check(), std::move(value_); }

    T& operator*() & noexcept { return value_; }
    const T& operator*() const& noexcept { return value_; }
    T&& operator*() && noexcept { return std::move(value_); }
    T* operator->() noexcept { return std::addressof(value_); }
    const T* operator->() const noexcept { return std::addressof(value_); }

    /// Of a success there is none: asking for it ends the program.
    [[nodiscard]] const skein::error& error() const noexcept {
        if (has_value_) [[unlikely]]
            __builtin_trap();
        return error_;
    }

private:
    void check() const {
        if (!has_value_) throw error_;
    }
    void move_from(result& other) noexcept(std::is_nothrow_move_constructible_v<T>) {
        has_value_ ? void(std::construct_at(std::addressof(value_), std::move(other.value_)))
                   : void(std::construct_at(&error_, std::move(other.error_)));
    }
    void end() noexcept {
        has_value_ ? std::destroy_at(std::addressof(value_)) : std::destroy_at(&error_);
    }

    // Not a std::variant: there are hundreds of results in a program, and those cost every file
    // that includes one.
    union {
        T value_;
        skein::error error_;
    };
    bool has_value_;
};

/// Success or an error.
template <>
class [[nodiscard]] result<void> {
public:
    using value_type = void;

    result() = default;
    result(skein::error e) : error_(std::move(e)) {}

    [[nodiscard]] bool has_value() const noexcept { return !error_; }
    explicit operator bool() const noexcept { return has_value(); }
    void value() const {
        if (error_) throw *error_;
    }
    [[nodiscard]] const skein::error& error() const noexcept { return *error_; }

private:
    std::optional<skein::error> error_;
};

} // namespace skein
