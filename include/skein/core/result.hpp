// SPDX-License-Identifier: Apache-2.0
#pragma once
// A value or a skein::error: what decoders of outside bytes return, and what as_result() gives.
//
//     result<frame> f = decode(bytes);
//     if (!f) return f.error();
//     use(*f);

#include <skein/core/error.hpp>

#include <concepts>
#include <optional>
#include <type_traits>
#include <utility>
#include <variant>

namespace skein {

/// Either a T or an error. value() throws the error; operator* must not be used on an error.
template <class T>
class [[nodiscard]] result {
public:
    using value_type = T;

    template <class U = T>
        requires(std::constructible_from<T, U> && !std::same_as<std::remove_cvref_t<U>, result> &&
                 !std::same_as<std::remove_cvref_t<U>, skein::error>)
    result(U&& value) : state_(std::in_place_index<0>, std::forward<U>(value)) {}
    result(skein::error e) : state_(std::in_place_index<1>, std::move(e)) {}

    [[nodiscard]] bool has_value() const noexcept { return state_.index() == 0; }
    explicit operator bool() const noexcept { return has_value(); }

    T& value() & { return check(), *std::get_if<0>(&state_); }
    const T& value() const& { return check(), *std::get_if<0>(&state_); }
    /// By value, so that `for (auto& x : f().value())` does not walk a dead temporary.
    T value() && { return check(), std::move(*std::get_if<0>(&state_)); }

    T& operator*() & noexcept { return *std::get_if<0>(&state_); }
    const T& operator*() const& noexcept { return *std::get_if<0>(&state_); }
    T&& operator*() && noexcept { return std::move(*std::get_if<0>(&state_)); }
    T* operator->() noexcept { return std::get_if<0>(&state_); }
    const T* operator->() const noexcept { return std::get_if<0>(&state_); }

    [[nodiscard]] const skein::error& error() const noexcept { return *std::get_if<1>(&state_); }

private:
    void check() const {
        if (!has_value()) throw error();
    }
    std::variant<T, skein::error> state_;
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
