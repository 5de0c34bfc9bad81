// SPDX-License-Identifier: Apache-2.0
#pragma once
// FNV-1a: a small hash for names and layouts that is the same on every machine and in every build.
// Not for bytes from outside: anybody can make collisions.
//
//     skein::fnv1a h;
//     h.text(name);
//     h.number(count);
//     return h.value();
//
//   source: Fowler, Noll, Vo: draft-eastlake-fnv, 64 bits

#include <cstdint>
#include <string_view>

namespace skein {

/// The hash of all bytes given so far, in their order.
class fnv1a {
public:
    constexpr void byte(std::uint8_t b) noexcept { state_ = (state_ ^ b) * 0x100000001b3u; }
    constexpr void text(std::string_view t) noexcept {
        for (const char c : t) byte(static_cast<std::uint8_t>(c));
    }
    /// Its eight bytes, the lowest first.
    constexpr void number(std::uint64_t n) noexcept {
        for (int i = 0; i < 64; i += 8) byte(static_cast<std::uint8_t>(n >> i));
    }
    [[nodiscard]] constexpr std::uint64_t value() const noexcept { return state_; }

private:
    std::uint64_t state_ = 0xcbf29ce484222325u;
};

} // namespace skein
