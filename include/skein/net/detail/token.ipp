// SPDX-License-Identifier: Apache-2.0
#pragma once
// Making, reading and naming a token.

#include <skein/core/error.hpp>
#include <skein/core/sha256.hpp>

#include <fmt/core.h>

namespace skein::net {

SKEIN_INLINE token token::generate() { return generate(system_random()); }
SKEIN_INLINE token token::generate(random_source& source) {
    token t;
    source.fill(std::as_writable_bytes(std::span(t.bytes_)));
    return t;
}

SKEIN_INLINE result<token> token::from_hex(std::string_view text) {
    constexpr std::string_view blank = " \t\r\n";
    const auto first = text.find_first_not_of(blank);
    if (first != std::string_view::npos) {
        text = text.substr(first, text.find_last_not_of(blank) - first + 1);
    }
    token t;
    const bool good = skein::from_hex(text, t.bytes_);
    if (!good) { // the text is a secret: say nothing of its content
        return error(errc::invalid_argument,
                     fmt::format("a token is {} hexadecimal digits, got {} characters", 2 * size,
                                 text.size()));
    }
    if (t.empty()) {
        return error(errc::invalid_argument, "a token of zeros only is no secret")
            .with_hint("leave it out, or make one: head -c 32 /dev/urandom | xxd -p -c 32");
    }
    return t;
}

SKEIN_INLINE std::string token::to_hex() const { return skein::to_hex(bytes()); }

SKEIN_INLINE bool operator==(const token& a, const token& b) noexcept {
    return equal_constant_time(a.bytes(), b.bytes());
}
SKEIN_INLINE bool token::empty() const noexcept { return *this == token{}; }

SKEIN_INLINE std::string token::fingerprint() const {
    const auto digest = hmac_sha256(bytes(), as_bytes("skein/1 fingerprint"));
    return skein::to_hex(byte_span(digest).first(4));
}

} // namespace skein::net
