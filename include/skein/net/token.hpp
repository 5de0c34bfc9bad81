// SPDX-License-Identifier: Apache-2.0
#pragma once
// The shared secret of a world: 32 random bytes that both ends of a connection must know.
//
// It never travels; the handshake proves knowledge of it. Print it only as fingerprint().

#include <skein/core/bytes.hpp>
#include <skein/core/random.hpp>
#include <skein/core/result.hpp>

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

    [[nodiscard]] byte_span bytes() const noexcept { return std::span<const std::byte>(bytes_); }
    [[nodiscard]] bool empty() const noexcept;

    /// Eight digits that tell two tokens apart without giving either away.
    [[nodiscard]] std::string fingerprint() const;

    friend bool operator==(const token& a, const token& b) noexcept;

private:
    std::array<std::byte, size> bytes_{};
};

} // namespace skein::net

#if SKEIN_HEADER_ONLY
#include <skein/net/detail/token.ipp>
#endif
