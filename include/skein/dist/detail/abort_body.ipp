// SPDX-License-Identifier: Apache-2.0
#pragma once
// The error of an abort as bytes: what a ring's notice and the record in a shared segment hold.

#include <skein/core/bytes.hpp>
#include <skein/core/error.hpp>
#include <skein/wire/decode.hpp>
#include <skein/wire/encode.hpp>

#include <cstddef>
#include <string>

#include <fmt/core.h>

namespace skein::dist::detail {

/// No body is longer, and no more is read from a neighbour.
inline constexpr std::size_t most_abort_bytes = 4096;

/// The error with its cause and hint, cut to most_abort_bytes.
[[nodiscard]] SKEIN_INLINE byte_buffer abort_body(const error& why) {
    const auto cut = [](const std::string& text, std::size_t most) { return text.substr(0, most); };
    return wire::encode(error(why.code(), cut(why.text(), 2000))
                            .with_where(cut(why.where(), 250))
                            .with_cause(cut(why.cause(), 1000))
                            .with_hint(cut(why.hint(), 750)));
}

/// The error in a body that the rank `from` wrote ("rank 3", or "a rank" when nobody knows which).
[[nodiscard]] SKEIN_INLINE error decode_abort(byte_span body, const std::string& from) {
    error why(errc::unknown, "");
    const auto done = wire::decode(body, why);
    if (done) return why;
    return error(errc::aborted, fmt::format("{} has aborted", from))
        .with_cause(done.error().what());
}

} // namespace skein::dist::detail
