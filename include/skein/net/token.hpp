// SPDX-License-Identifier: Apache-2.0
#pragma once
// The shared secret of a world: 32 random bytes that both ends of a connection must know.
//
// It never travels; the handshake proves knowledge of it. Print it only as fingerprint().

#include <skein/core/bytes.hpp>
#include <skein/core/error.hpp>
#include <skein/core/random.hpp>
#include <skein/core/result.hpp>
#include <skein/core/sha256.hpp>

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

#include <fmt/core.h>

namespace skein::net {

/// A value; compared in constant time.
class token {
public:
    static constexpr std::size_t size = 32;

    /// All zero: "no token". Refused by endpoints on addresses that other hosts can reach.
    token() = default;

    /// A new secret from the kernel's random source, or from `source` in the simulated world.
    static token generate() { return generate(system_random()); }
    static token generate(random_source& source) {
        token t;
        source.fill(std::as_writable_bytes(std::span(t.bytes_)));
        return t;
    }

    /// 64 hexadecimal digits; surrounding white space is ignored.
    static result<token> from_hex(std::string_view text) {
        constexpr std::string_view blank = " \t\r\n";
        const auto first = text.find_first_not_of(blank);
        if (first != std::string_view::npos) {
            text = text.substr(first, text.find_last_not_of(blank) - first + 1);
        }
        token t;
        const bool good = skein::from_hex(text, t.bytes_);
        if (!good) { // the text is a secret: say nothing of its content
            return error(errc::invalid_argument,
                         fmt::format("a token is {} hexadecimal digits, got {} characters",
                                     2 * size, text.size()));
        }
        return t;
    }
    [[nodiscard]] std::string to_hex() const { return skein::to_hex(bytes()); }

    [[nodiscard]] byte_span bytes() const noexcept { return std::span<const std::byte>(bytes_); }
    [[nodiscard]] bool empty() const noexcept { return *this == token{}; }

    /// Eight digits that tell two tokens apart without giving either away.
    [[nodiscard]] std::string fingerprint() const {
        const auto digest = hmac_sha256(bytes(), as_bytes("skein/1 fingerprint"));
        return skein::to_hex(byte_span(digest).first(4));
    }

    friend bool operator==(const token& a, const token& b) noexcept {
        return equal_constant_time(a.bytes(), b.bytes());
    }

private:
    std::array<std::byte, size> bytes_{};
};

} // namespace skein::net
