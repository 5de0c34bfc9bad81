// SPDX-License-Identifier: Apache-2.0
#pragma once
// A number of things, as a person types it into a struct of options: any integer that is not
// negative, of whatever type the program has it in.
//
//     struct reading { option_count most = 16; };
//     const int asked = 4;
//     reading{.most = asked};                 // as well as a std::size_t, or a constant
//     reading{.most = asked - 5};             // throws errc::usage: "a count of -1"

#include <skein/core/error.hpp>

#include <concepts>
#include <cstddef>
#include <string>
#include <utility>

namespace skein {

/// See the file's head. Works like a std::size_t once it is made.
class option_count {
public:
    constexpr option_count() noexcept = default;
    /// Throws errc::usage for a negative number; at compile time it does not compile.
    template <std::integral T>
        requires(!std::same_as<T, bool>)
    constexpr option_count(T number) : value_(static_cast<std::size_t>(number)) {
        if (std::cmp_less(number, 0)) refuse(static_cast<long long>(number));
    }
    constexpr operator std::size_t() const noexcept { return value_; }
    [[nodiscard]] constexpr std::size_t value() const noexcept { return value_; }

private:
    [[noreturn]] static void refuse(long long number) {
        throw error(errc::usage, "a count of " + std::to_string(number))
            .with_hint("options that say how many are 0 or more");
    }

    std::size_t value_ = 0;
};

} // namespace skein
