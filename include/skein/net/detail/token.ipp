// SPDX-License-Identifier: Apache-2.0
#pragma once
// Making, reading and naming a token, and keys that are derived from one.

#include <skein/core/check.hpp>
#include <skein/core/error.hpp>
#include <skein/core/sha256.hpp>

#include <algorithm>
#include <charconv>
#include <system_error>

#include <fmt/core.h>

namespace skein::net {
namespace detail {

[[nodiscard]] inline std::string_view without_blanks(std::string_view text) {
    constexpr std::string_view blank = " \t\r\n";
    const auto first = text.find_first_not_of(blank);
    if (first == std::string_view::npos) return {};
    return text.substr(first, text.find_last_not_of(blank) - first + 1);
}

} // namespace detail

SKEIN_INLINE token token::generate() { return generate(system_random()); }
SKEIN_INLINE token token::generate(random_source& source) {
    token t;
    source.fill(std::as_writable_bytes(std::span(t.bytes_)));
    return t;
}

SKEIN_INLINE result<token> token::from_hex(std::string_view text) {
    text = detail::without_blanks(text);
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

SKEIN_INLINE result<token> token::from_text(std::string_view text) {
    text = detail::without_blanks(text);
    const auto kind_end = text.find('.');
    if (kind_end == std::string_view::npos) return from_hex(text);
    const auto bad = [](std::string what) { // the text is a secret: say nothing of its digits
        return error(errc::invalid_argument, std::move(what))
            .with_hint(fmt::format("a key is KIND.NUMBER.DIGITS, with {} digits", 2 * size));
    };
    const auto kind =
        std::find(key_kind_names.begin() + 1, key_kind_names.end(), text.substr(0, kind_end));
    if (kind == key_kind_names.end()) return bad("the text is of no kind of key that is known");
    const auto of = static_cast<key_kind>(kind - key_kind_names.begin());
    const auto rest = text.substr(kind_end + 1);
    const auto number_end = std::min(rest.find('.'), rest.size());
    std::uint64_t number = 0;
    const auto* const last = rest.data() + number_end;
    const auto read = std::from_chars(rest.data(), last, number, 16);
    if (read.ec != std::errc() || read.ptr != last || number_end == rest.size())
        return bad(fmt::format("the text of {} is cut, or its number is none", to_string(of)));
    const auto digits = from_hex(rest.substr(number_end + 1));
    if (!digits)
        return bad(
            fmt::format("{} ends with {} hexadecimal digits, this one has {} characters there",
                        to_string(of), 2 * size, rest.size() - number_end - 1));
    return of_bytes({of, number}, digits->bytes());
}

SKEIN_INLINE std::string token::to_text() const {
    if (!is_derived()) return to_hex();
    SKEIN_CHECK(is_known(name_.kind), "a key of kind {}", static_cast<unsigned>(name_.kind));
    return fmt::format("{}.{:x}.{}", key_kind_names[static_cast<std::size_t>(name_.kind)],
                       name_.number, to_hex());
}

SKEIN_INLINE token token::derive(const key_name& of) const {
    if (of == name_) return *this;
    SKEIN_CHECK(!is_derived(), "a key of {} cannot be derived from {}", to_string(of.kind),
                to_string(name_.kind));
    std::array<std::byte, 10> name{};
    store_le(name.data(), static_cast<std::uint16_t>(of.kind));
    store_le(name.data() + 2, of.number);
    return of_bytes(of, hmac_sha256(bytes(), as_bytes("skein/1 key"), byte_span(name)));
}

SKEIN_INLINE token token::of_bytes(const key_name& of, byte_span bytes) {
    SKEIN_CHECK(bytes.size() == size, "a key of {} bytes", bytes.size());
    token t;
    std::copy(bytes.begin(), bytes.end(), t.bytes_.begin());
    t.name_ = of;
    return t;
}

SKEIN_INLINE bool operator==(const token& a, const token& b) noexcept {
    return equal_constant_time(a.bytes(), b.bytes()) && a.name_ == b.name_;
}
SKEIN_INLINE bool token::empty() const noexcept {
    return equal_constant_time(bytes(), token{}.bytes());
}

SKEIN_INLINE std::string token::fingerprint() const {
    const auto digest = hmac_sha256(bytes(), as_bytes("skein/1 fingerprint"));
    return skein::to_hex(byte_span(digest).first(4));
}

} // namespace skein::net
