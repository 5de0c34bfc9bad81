// SPDX-License-Identifier: Apache-2.0
#pragma once
// Messages of a protocol: aggregates with numbers, and a table of them.
//
//     struct sum_request { static constexpr std::uint16_t number = 1; std::vector<int> items; };
//     using table = net::message_table<sum_request, sum_reply>;
//     table::check(1, bytes);      // whether the bytes are a sum_request

#include <skein/core/bytes.hpp>
#include <skein/core/error.hpp>
#include <skein/core/result.hpp>
#include <skein/core/type_name.hpp>
#include <skein/wire/decode.hpp>

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <typeinfo>
#include <utility>

#include <fmt/core.h>

namespace skein::net {

/// An aggregate with a number, which is the same in all programs that speak of it.
template <class T>
concept message = wire::encodable<T> && requires {
    { T::number } -> std::convertible_to<std::uint16_t>;
};

/// All messages of a protocol: numbers are unique, and each decoder is found by its number.
template <message... Messages>
struct message_table {
    static constexpr std::array<std::uint16_t, sizeof...(Messages)> numbers{Messages::number...};

    /// Decodes a body as the message of that number.
    ///   errors  not_found (no such number), those of wire::decode
    [[nodiscard]] static result<void> check(std::uint16_t number, byte_span body) {
        static_assert(are_unique(), "two messages of a table have one number");
        result<void> out(
            error(errc::not_found, fmt::format("no message has the number {}", number)));
        (void)((number == Messages::number && (out = check_one<Messages>(body), true)) || ...);
        return out;
    }

private:
    static consteval bool are_unique() {
        for (std::size_t i = 0; i < numbers.size(); ++i) {
            for (std::size_t k = 0; k < i; ++k) {
                if (numbers[i] == numbers[k]) return false;
            }
        }
        return true;
    }
    template <class T>
    static result<void> check_one(byte_span body) {
        auto read = wire::decode<T>(body);
        if (!read) return read.error();
        return {};
    }
};

namespace detail {

/// A decoded message, or an error that names it.
template <class T>
[[nodiscard]] T decode_message(byte_span body, std::string_view what) {
    auto read = wire::decode<T>(body);
    if (read) return std::move(*read);
    throw error(errc::malformed,
                fmt::format("the {} {} does not decode", what, type_name(typeid(T))))
        .with_cause(read.error().what());
}
} // namespace detail
} // namespace skein::net
