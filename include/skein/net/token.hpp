// SPDX-License-Identifier: Apache-2.0
#pragma once
// The shared secret of a world: 32 random bytes that both ends of a connection must know. Or a key
// that was derived from it, and opens less; who has the token derives any key, and stores none.
//
//     const auto key = token.derive({net::key_kind::view, 0});
//     const auto same = net::token::from_text(key.to_text());   // "view.0.5f3c..."
//
// Neither ever travels; the handshake proves knowledge of it. Print it only as fingerprint().

#include <skein/core/bytes.hpp>
#include <skein/core/random.hpp>
#include <skein/core/result.hpp>
#include <skein/net/key_name.hpp>

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace skein::net {

/// A value; compared in constant time.
class token {
public:
    static constexpr std::size_t size = 32;

    /// All zero: "no token". Refused by endpoints on addresses that other hosts can reach.
    token() = default;

    /// A new secret from the kernel's random source, or from `source` in the simulated world.
    static token generate();
    static token generate(random_source& source);

    /// 64 hexadecimal digits, not all of them zero; surrounding white space is ignored.
    static result<token> from_hex(std::string_view text);
    [[nodiscard]] std::string to_hex() const;

    /// The same, or the text of a key: its kind, its number, and 64 digits.
    static result<token> from_text(std::string_view text);
    [[nodiscard]] std::string to_text() const;

    /// The key of that name, HMAC-SHA256(token, label, kind, number). Of the token itself alone:
    /// nothing is derived from a derived key. Its own name gives itself.
    [[nodiscard]] token derive(const key_name& of) const;
    /// A key of that name whose bytes are known; `size` of them.
    static token of_bytes(const key_name& of, byte_span bytes);
    /// Whether it is the token itself, or which key of it.
    [[nodiscard]] const key_name& name() const noexcept { return name_; }
    [[nodiscard]] bool is_derived() const noexcept { return name_ != key_name(); }

    [[nodiscard]] byte_span bytes() const noexcept { return std::span<const std::byte>(bytes_); }
    [[nodiscard]] bool empty() const noexcept;

    /// Eight digits that tell two tokens apart without giving either away.
    [[nodiscard]] std::string fingerprint() const;

    friend bool operator==(const token& a, const token& b) noexcept;

private:
    std::array<std::byte, size> bytes_{};
    key_name name_{};
};

} // namespace skein::net

#if SKEIN_HEADER_ONLY
#include <skein/net/detail/token.ipp>
#endif
